//! The v0 API with a key: both directions, and everything that is refused, against the real daemon.

mod common;

use std::path::Path;

use api::encrypted::{Key, decrypt, encrypt};
use api::v0::{Encrypted, Messages};
use api::v1;
use common::{Daemon, V0, within};
use prost::Message;

const KEY: [u8; 32] = [0x42; 32];

fn start() -> Daemon {
    let (dir, v0) = common::folder();
    let key = dir.path().join("key");
    common::private(&key, "QkJCQkJCQkJCQkJCQkJC\n QkJCQkJCQkJCQkJCQkJCQkI=\n");
    let key = key.to_str().unwrap().to_owned();
    Daemon::start_in(dir, v0, &["-k", &key])
}

fn sealed(key: [u8; 32], content: &[u8]) -> Vec<u8> {
    let encrypted = Encrypted {
        aes256cbc_sha512: Some(encrypt(&Key::from(key), content)),
        error: None,
    };
    Messages {
        messages: vec![],
        encrypted: Some(encrypted),
    }
    .encode_to_vec()
}

fn text(request: &str) -> Vec<u8> {
    api::text_format::parse(request).unwrap().encode_to_vec()
}

async fn ask(client: &mut V0, request: Vec<u8>) -> String {
    api::text_format::print(&Messages::decode(client.ask(request).await.as_slice()).unwrap())
}

/// Asks and opens the answer, which must be sealed and nothing else.
async fn ask_sealed(client: &mut V0, content: &[u8]) -> Vec<u8> {
    ask_sealed_by(KEY, client, content).await
}

async fn ask_sealed_by(key: [u8; 32], client: &mut V0, content: &[u8]) -> Vec<u8> {
    let reply = Messages::decode(client.ask(sealed(key, content)).await.as_slice()).unwrap();
    assert_eq!(reply.messages, []);
    let encrypted = reply.encrypted.unwrap();
    assert_eq!(encrypted.error, None);
    decrypt(&Key::from(key), &encrypted.aes256cbc_sha512.unwrap()).unwrap()
}

const REJECTED: &str = "messages {\n  revision: 6\n  error {\n    code: REJECTED\n  }\n}\n";
const REFUSED: &str = "encrypted {\n  error {\n    code: REJECTED\n  }\n}\n";

/// v0-contract.md 8 and 21.
#[tokio::test]
async fn a_sealed_request_is_carried_out_and_its_answer_is_sealed() {
    let daemon = start();
    let mut client = daemon.v0().await;
    let request = text(
        "messages { revision: 0 message_0 { request { sg_add { id: 'a' } } message_id: 'x' } }",
    );
    let answer = Messages::decode(ask_sealed(&mut client, &request).await.as_slice()).unwrap();
    let expected = "messages { revision: 6 message_0 { response { status { status: true } } \
                    message_id: 'x' } }";
    assert_eq!(answer, api::text_format::parse(expected).unwrap());
}

/// v0-contract.md 9, 23, 24, 26 and 27.
#[tokio::test]
async fn what_is_not_sealed_with_this_key_is_refused_and_changes_nothing() {
    let daemon = start();
    let mut client = daemon.v0().await;
    let request = text("messages { revision: 0 message_0 { request { sg_add { id: 'a' } } } }");
    // Clear, and empty.
    assert_eq!(ask(&mut client, request.clone()).await, REJECTED);
    assert_eq!(ask(&mut client, vec![]).await, REJECTED);
    // Another key, a changed byte, too short to be anything, no ciphertext.
    assert_eq!(
        ask(&mut client, sealed([0x43; 32], &request)).await,
        REFUSED
    );
    let mut broken = sealed(KEY, &request);
    *broken.last_mut().unwrap() ^= 1;
    assert_eq!(ask(&mut client, broken).await, REFUSED);
    assert_eq!(
        ask(
            &mut client,
            text("encrypted { aes256cbc_sha512: '0123456789abcdef' }")
        )
        .await,
        REFUSED
    );
    let unsupported = "encrypted {\n  error {\n    code: NOT_SUPPORTED\n  }\n}\n";
    assert_eq!(ask(&mut client, text("encrypted { }")).await, unsupported);
    // Sealed inside sealed.
    let twice = ask_sealed(&mut client, &sealed(KEY, &request)).await;
    assert_eq!(
        api::text_format::print(&Messages::decode(twice.as_slice()).unwrap()),
        REJECTED
    );
    // Bytes that are no message: clear ones are answered clear, sealed ones sealed.
    let parse_error = [0x08, 6, 0x12, 2, 0x08, 0];
    assert_eq!(client.ask(b"hello".to_vec()).await, parse_error);
    assert_eq!(ask_sealed(&mut client, b"hello").await, parse_error);

    let list = text("messages { revision: 0 message_0 { request { sg_list: true } } }");
    let answer = Messages::decode(ask_sealed(&mut client, &list).await.as_slice()).unwrap();
    let none = "messages { revision: 6 message_0 { response { status { status: true } } } }";
    assert_eq!(answer, api::text_format::parse(none).unwrap());
}

#[tokio::test]
async fn another_key_is_in_force_when_its_file_was_read_again() {
    const ANOTHER: [u8; 32] = [0x43; 32];
    let daemon = start();
    let (path, mut admin) = (daemon.path("key"), daemon.v1().await);
    let list = text("messages { revision: 0 message_0 { request { sg_list: true } } }");
    let mut client = daemon.v0().await;
    let answer = ask_sealed(&mut client, &list).await;
    // The same one, and one that everybody can read, change nothing.
    within(admin.reload(v1::ReloadRequest {})).await.unwrap();
    common::private(&path, "Q0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0M=\n");
    common::set_mode(&path, 0o644);
    let refused = within(admin.reload(v1::ReloadRequest {})).await;
    let why = refused.unwrap_err();
    let said = "key can be read by everybody (mode 644)";
    assert!(why.message().contains(said), "{why}");
    assert_eq!(ask_sealed(&mut client, &list).await, answer);
    common::set_mode(&path, 0o600);
    let read = within(admin.reload(v1::ReloadRequest {})).await.unwrap();
    let read = read.into_inner().read;
    let another = "key: another key, clients have to connect again";
    assert!(read.iter().any(|line| line.ends_with(another)), "{read:?}");
    // Who is there is hung up on; its library may connect again by itself.
    if let Some(reply) = client.ask_or_end(sealed(KEY, &list)).await {
        let reply = Messages::decode(reply.as_slice()).unwrap();
        assert_eq!(api::text_format::print(&reply), REFUSED);
    }
    let mut client = daemon.v0().await;
    assert_eq!(ask(&mut client, sealed(KEY, &list)).await, REFUSED);
    let mut client = daemon.v0().await;
    assert_eq!(ask_sealed_by(ANOTHER, &mut client, &list).await, answer);
}

#[test]
fn a_bad_key_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    common::private(&key, "c2hvcnQ=");
    refused(&key, &format!("key file {}: holds 5 bytes", key.display()));
}

#[test]
fn a_key_that_everybody_can_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    common::private(&key, "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI=\n");
    common::set_mode(&key, 0o644);
    let name = key.display();
    let why = format!("key file {name} can be read by everybody (mode 644): chmod o= {name}");
    refused(&key, &why);
}

/// A daemon with this key does not start, says this, and makes nothing.
fn refused(key: &Path, why: &str) {
    let socket_dir = key.with_file_name("sockets");
    let output = common::run(&[
        "--no-syslog",
        "--api",
        "none",
        "-s",
        socket_dir.to_str().unwrap(),
        "-k",
        key.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains(why), "{errors}");
    assert_eq!(common::files(&socket_dir), Vec::<String>::new());
}
