//! A v0 daemon that writes down what it is asked and answers from a table.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use api::encrypted::{self, Key};
use api::v0::message_v0::{Nic, NicAddRes, NicExportRes, NicStats, Request, Response, Sg, Status};
use api::v0::{Encrypted, Message, MessageV0, Messages};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};
use zeromq::{RepSocket, Socket, SocketRecv, SocketSend};

/// The daemon; it ends with the test's process.
pub struct ZmqStub {
    pub endpoint: String,
    requests: Receiver<Request>,
    frames: Receiver<Vec<u8>>,
}

impl ZmqStub {
    /// Listens on `<dir>/v0.ipc` and answers as [`answer`] does.
    pub fn start(dir: &Path) -> ZmqStub {
        ZmqStub::start_with(dir, None, answer)
    }

    /// Listens; with a key it takes encrypted requests alone.
    pub fn start_with(dir: &Path, key: Option<Key>, answer: fn(&Request) -> Response) -> ZmqStub {
        let endpoint = format!("ipc://{}/v0.ipc", dir.display());
        let bind = endpoint.clone();
        let (ready, bound) = channel();
        let (log, requests) = channel();
        let (sent, frames) = channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let mut socket = RepSocket::new();
                socket.bind(&bind).await.unwrap();
                ready.send(()).unwrap();
                while let Ok(frame) = socket.recv().await {
                    let frame = frame.into_vec().concat();
                    let _ = sent.send(frame.clone());
                    let reply = reply(&frame, key.as_ref(), |request| {
                        let _ = log.send(request.clone());
                        answer(request)
                    });
                    if socket.send(reply.encode_to_vec().into()).await.is_err() {
                        break;
                    }
                }
            });
        });
        bound.recv().expect("the stub listens");
        ZmqStub {
            endpoint,
            requests,
            frames,
        }
    }

    /// The frames since the last call, as they came.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        self.frames.try_iter().collect()
    }

    /// The requests since the last call, each on a line of text format.
    pub fn requests(&self) -> Vec<String> {
        self.requests
            .try_iter()
            .map(|request| one_line(&request))
            .collect()
    }
}

/// Listens on `<dir>/v0.ipc` as somebody who need not be a daemon: for one client after another,
/// the bytes that are said to it, and how many of its own are heard before it is hung up on. The
/// endpoint.
pub fn stranger(dir: &Path, clients: Vec<(Vec<u8>, u64)>) -> String {
    let path = dir.join("v0.ipc");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for (said, heard) in clients {
            let (mut client, _) = listener.accept().unwrap();
            // A client that does not like it hangs up.
            if client.write_all(&said).is_ok() {
                let _ = std::io::copy(&mut client.take(heard), &mut std::io::sink());
            }
        }
    });
    format!("ipc://{}", path.display())
}

/// What is replied to a request frame; with a key, to encrypted ones alone.
pub fn reply(
    frame: &[u8],
    key: Option<&Key>,
    mut answer: impl FnMut(&Request) -> Response,
) -> Messages {
    let mut messages = Messages::decode(frame).unwrap();
    match (key, messages.encrypted.take()) {
        (None, None) => {}
        (Some(key), Some(envelope)) => match encrypted::decrypt(key, envelope.aes256cbc_sha512()) {
            Ok(clear) => messages = Messages::decode(clear.as_slice()).unwrap(),
            Err(_) => {
                let error = Some(api::v0::encrypted::Error { code: Some(1) });
                let envelope = Encrypted {
                    error,
                    aes256cbc_sha512: None,
                };
                return Messages {
                    messages: Vec::new(),
                    encrypted: Some(envelope),
                };
            }
        },
        _ => {
            let error = Some(api::v0::Error { code: Some(4) });
            return Messages {
                messages: vec![Message {
                    revision: api::v0::REVISION,
                    error,
                    message_0: None,
                }],
                encrypted: None,
            };
        }
    }
    let message = |message: Message| {
        let request = message
            .message_0
            .unwrap_or_default()
            .request
            .unwrap_or_default();
        let content = MessageV0 {
            response: Some(answer(&request)),
            ..Default::default()
        };
        Message {
            revision: api::v0::REVISION,
            error: None,
            message_0: Some(content),
        }
    };
    let answers = Messages {
        messages: messages.messages.into_iter().map(message).collect(),
        encrypted: None,
    };
    match key {
        None => answers,
        Some(key) => {
            let bytes = Some(encrypted::encrypt(key, &answers.encode_to_vec()));
            let envelope = Encrypted {
                error: None,
                aes256cbc_sha512: bytes,
            };
            Messages {
                messages: Vec::new(),
                encrypted: Some(envelope),
            }
        }
    }
}

/// Everything succeeds but what is called `refused`; there is a NIC `vnic_1` in the group `old`,
/// and a group `old` without rules.
pub fn answer(request: &Request) -> Response {
    let mut response = Response {
        status: Status {
            status: true,
            error: None,
        },
        ..Default::default()
    };
    if one_line(request).contains("refused") {
        let description = Some("there is no NIC \"refused\"".into());
        let error = Some(api::v0::message_v0::Error {
            description,
            ..Default::default()
        });
        response.status = Status {
            status: false,
            error,
        };
        return response;
    }
    if let Some(nic) = &request.nic_add {
        response.nic_add = Some(NicAddRes {
            path: Some(format!("/run/butterfly/qemu-vhost-{}", nic.id)),
        });
    }
    if request.nic_list.is_some() {
        response.nic_list = vec!["vnic_1".into()];
    }
    if let Some(id) = &request.nic_details {
        response.nic_details = vec![Nic {
            id: if id.is_empty() {
                "vnic_1".into()
            } else {
                id.clone()
            },
            mac: "52:54:00:12:34:01".into(),
            vni: 42,
            security_group: vec!["old".into()],
            path: Some("/run/butterfly/qemu-vhost-vnic_1".into()),
            ..Default::default()
        }];
    }
    if request.nic_export.is_some() {
        let data = Some(b"connections".to_vec());
        response.nic_export = Some(NicExportRes {
            fw_data: Some(api::v0::message_v0::nic_export_res::FwData { data }),
        });
    }
    if request.nic_stats.is_some() {
        response.nic_stats = Some(NicStats {
            r#in: 1500,
            out: 64,
        });
    }
    if request.sg_list.is_some() {
        response.sg_list = vec!["old".into()];
    }
    if request.sg_details.is_some() {
        response.sg_details = vec![Sg {
            id: "old".into(),
            ..Default::default()
        }];
    }
    if request.app_status.is_some() {
        response.app_status = Some(Default::default());
    }
    response
}

fn one_line(request: &Request) -> String {
    let pool = DescriptorPool::decode(api::v0::DESCRIPTORS).unwrap();
    let descriptor = pool.get_message_by_name("MessageV0.Request").unwrap();
    DynamicMessage::decode(descriptor, request.encode_to_vec().as_slice())
        .unwrap()
        .to_text_format()
}
