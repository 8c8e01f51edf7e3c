//! Exit codes, messages and output as a script meets them.

mod common;

use std::io::Read;
use std::iter;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use api::encrypted::Key;
use api::text_format;
use api::v0::message_v0::{Error, Response, Status};
use api::v1;
use api::zmtp::{MORE, greeting, push_frame, ready};
use common::grpc::{GrpcStub, Messages};
use common::zmq::{self, ZmqStub};
use common::{Ran, butterfly, command, ran, run, words};
use prost::Message;

/// Nothing on stdout, this code, this sentence on stderr.
#[track_caller]
fn fails(ran: Ran, code: i32, sentence: &str) {
    assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{ran:?}");
    assert_eq!(ran.stderr, format!("butterfly: {sentence}\n"));
}

#[test]
fn success_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    let stub = GrpcStub::start(dir.path());
    let silent = Ran {
        code: 0,
        stdout: String::new(),
        stderr: String::new(),
    };
    assert_eq!(
        butterfly(
            &stub.endpoint,
            "nic del nobody + sg add a + sg member del a 42.0.0.1"
        ),
        silent
    );
}

#[test]
fn a_refusal_is_1_and_the_daemons_words() {
    let dir = tempfile::tempdir().unwrap();
    let (v0, v1) = (ZmqStub::start(dir.path()), GrpcStub::start(dir.path()));
    for endpoint in [&v0.endpoint, &v1.endpoint] {
        fails(
            butterfly(endpoint, "nic details refused"),
            1,
            "there is no NIC \"refused\"",
        );
    }
}

#[test]
fn a_chain_prints_what_was_done_before_it_failed() {
    let dir = tempfile::tempdir().unwrap();
    let stub = GrpcStub::start(dir.path());
    let ran = butterfly(&stub.endpoint, "nic list + nic details refused + sg list");
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "vnic_1\n"));
    assert_eq!(stub.requests(), ["ListNics", "GetNic id:\"refused\""]);
}

#[test]
fn usage_is_2_and_nothing_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let stub = ZmqStub::start(dir.path());
    assert_eq!(
        butterfly(&stub.endpoint, "nic del vnic_1 + nic del").code,
        2
    );
    assert_eq!(run(&[]).code, 2);
    assert_eq!(stub.requests(), Vec::<String>::new());
    fails(
        butterfly("http://h:1", "nic list"),
        2,
        "endpoint \"http://h:1\": API v1 over TCP is spoken under TLS only: use https://HOST:PORT \
         with --tls-cert, --tls-key and --tls-ca",
    );
    fails(
        butterfly("https://h:1", "nic list"),
        2,
        "https://h:1 asks for certificates of both ends: --tls-cert is missing",
    );
}

#[test]
fn nobody_there_is_3_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("none").display().to_string();
    let start = Instant::now();
    for endpoint in [format!("unix:{socket}"), format!("ipc://{socket}")] {
        let why = "No such file or directory (os error 2)";
        fails(
            butterfly(&endpoint, "nic list"),
            3,
            &format!("cannot reach butterflyd at {endpoint}: {why}"),
        );
    }
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let why = "Connection refused (os error 111)";
    fails(
        butterfly(&endpoint, "nic list"),
        3,
        &format!("cannot reach butterflyd at {endpoint}: {why}"),
    );
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "it waited for a timeout"
    );
}

#[test]
fn no_answer_in_time_is_3() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("silent");
    let _listener = UnixListener::bind(&path).unwrap();
    let endpoint = format!("ipc://{}", path.display());
    fails(
        butterfly(&endpoint, "nic list -t 100"),
        3,
        &format!("cannot reach butterflyd at {endpoint}: no connection within 100 ms"),
    );
    let endpoint = format!("unix:{}", path.display());
    fails(
        butterfly(&endpoint, "nic list -t 100"),
        3,
        &format!("butterflyd at {endpoint} gave no answer to ListNics within 100 ms"),
    );
    fails(
        butterfly(&endpoint, "nic del vm1 -t 100"),
        3,
        &format!("butterflyd at {endpoint} gave no answer to DeleteNic within 100 ms"),
    );
}

/// Each connection of the list comes in time.
#[test]
fn a_look_of_top_that_does_not_end_is_3() {
    let dir = tempfile::tempdir().unwrap();
    // So large that a few fill what may be on its way.
    let endless = |method: &str| -> Option<Messages> {
        let flow = v1::Flow {
            nic: "x".repeat(20_000),
            ..Default::default()
        };
        let flows = iter::repeat_with(move || {
            thread::sleep(Duration::from_millis(20));
            flow.encode_to_vec()
        });
        (method == "ListFlows").then(|| Box::new(flows) as _)
    };
    let stub = GrpcStub::start_with(dir.path(), endless);
    fails(
        butterfly(&stub.endpoint, "top --once --view flows -t 1000"),
        3,
        &format!(
            "butterflyd at {} has not answered whole within 1000 ms",
            stub.endpoint
        ),
    );
}

/// What a server of v0 says to each client.
fn hello() -> Vec<u8> {
    [&greeting()[..], &ready("REP")].concat()
}

/// An answer, in the frames of a reply.
fn framed(answer: &[u8]) -> Vec<u8> {
    let mut bytes = vec![MORE, 0];
    push_frame(&mut bytes, 0, answer);
    bytes
}

/// Who has bound the port before the daemon says that much is to come, or as much as becomes very
/// much in memory: the program ends by itself.
#[test]
fn a_stranger_s_answer_is_3_and_takes_little_memory() {
    const MEMORY_KIB: usize = 2 << 20;
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n").unwrap();
    let claim = (1u64 << 48).to_be_bytes();
    let ready_claim = [&greeting()[..], b"\x06", &claim].concat();
    let answer_claim = [&hello()[..], &[MORE, 0, 2], &claim].concat();
    // Four million answers to one request: each takes hundreds of times its bytes, once decoded.
    let empty = [0x0a, 2, 0x08, 6].repeat(4 << 20);
    let answers = [&hello()[..], &framed(&empty)].concat();
    for (said, before, why) in [
        (ready_claim, true, "a message is larger than 4096 bytes"),
        (
            answer_claim,
            false,
            "a message is larger than 67112960 bytes",
        ),
        (answers, false, "its answer has more than 1 messages"),
    ] {
        for with_key in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let endpoint = zmq::stranger(dir.path(), vec![(said.clone(), u64::MAX)]);
            let mut limited = Command::new("sh");
            let limit = format!("ulimit -v {MEMORY_KIB} && exec \"$@\"");
            limited.args(["-c", &limit, "sh", env!("CARGO_BIN_EXE_butterfly")]);
            limited
                .args(["-e", &endpoint, "nic", "list"])
                .stdin(Stdio::null());
            if with_key {
                limited.arg("-k").arg(&key);
            }
            let sentence = match before {
                true => format!("cannot reach butterflyd at {endpoint}: {why}"),
                false => format!("{endpoint} does not speak Butterfly's API v0: {why}"),
            };
            fails(ran(limited), 3, &sentence);
        }
    }
}

/// The first connection is of no more use: its daemon hangs, or was restarted behind the connect.
#[test]
fn who_waits_for_the_daemon_asks_on_another_connection() {
    let status = "messages { revision: 6 message_0 { request { app_status: true } } }";
    let status = text_format::parse(status).unwrap().encode_to_vec();
    let answer = framed(&zmq::reply(&status, None, zmq::answer).encode_to_vec());
    // `status --wait` asks once more for what it shows.
    let works = [&hello()[..], &answer, &answer].concat();
    let question_begun = (greeting().len() + ready("REQ").len() + 1) as u64;
    for command in ["health --wait -t 2000", "status --wait -t 2000"] {
        for (why, heard) in [("it hangs", u64::MAX), ("it hangs up", question_begun)] {
            let dir = tempfile::tempdir().unwrap();
            let clients = vec![(hello(), heard), (works.clone(), u64::MAX)];
            let endpoint = zmq::stranger(dir.path(), clients);
            let ran = butterfly(&endpoint, command);
            assert_eq!(ran.code, 0, "{command}, {why}: {ran:?}");
        }
    }
}

#[test]
fn a_terminal_obeys_nothing_that_a_daemon_says() {
    fn refuse(_: &api::v0::message_v0::Request) -> Response {
        let error = Some(Error {
            description: Some("no\x1b]0;title\x07 NIC\r".into()),
            ..Default::default()
        });
        let status = Status {
            status: false,
            error,
        };
        Response {
            status,
            ..Default::default()
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let stub = ZmqStub::start_with(dir.path(), None, refuse);
    fails(
        butterfly(&stub.endpoint, "nic list"),
        1,
        "no\u{fffd}]0;title\u{fffd} NIC\u{fffd}",
    );
}

#[test]
fn output_that_cannot_be_written_is_4() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
        return eprintln!("skipped: no /dev/full");
    };
    let mut child = command(&words("completion zsh"))
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut message = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut message)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert_eq!(
        message,
        "butterfly: cannot write the output: No space left on device (os error 28)\n"
    );
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let mut child = command(&words("completion bash + completion zsh"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut message = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut message)
        .unwrap();
    assert_eq!(
        (child.wait().unwrap().code(), message.as_str()),
        (Some(0), "")
    );
}

/// How a chain ends whose output has no reader, and what it says then.
fn unread(args: &[String]) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = command(args)
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut message = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut message).unwrap();
    (child.wait().unwrap().code(), message)
}

/// `config + apply new.json | less`, and `less` is left: nothing is applied, which is no success.
/// Where what follows prints alone it is one.
#[test]
fn a_reader_that_goes_away_before_a_change_is_4_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let stub = GrpcStub::start(dir.path());
    let on_stub = |line: &str| {
        let mut args = vec!["-e".to_owned(), stub.endpoint.clone()];
        args.extend(words(line));
        unread(&args)
    };
    let (code, said) = on_stub("nic list + nic list + sg list + nic del vnic_1 + sg list");
    assert_eq!(code, Some(4));
    assert_eq!(
        said,
        "butterfly: nobody reads the output any more: command 2 of 5 and those behind it were not \
         run\n"
    );
    assert_eq!(stub.requests(), ["ListNics"]);
    // Whether it works is told by the exit code.
    assert_eq!(on_stub("nic list + health").0, Some(4));
    assert_eq!(on_stub("nic list + sg list"), (Some(0), String::new()));
    // What it was refused is more than that nobody reads what it did before.
    let (code, said) = on_stub("sg add web refused --json");
    assert_eq!(
        (code, said.as_str()),
        (Some(1), "butterfly: there is no NIC \"refused\"\n")
    );
}

#[test]
fn a_key_encrypts_and_another_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, base64: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, base64).unwrap();
        path
    };
    // 32 bytes of base64: all zero bits, and all but the first.
    let right = file("right", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n");
    let wrong = file("wrong", "gAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n");
    let short = file("short", "AAAA\n");
    let stub = ZmqStub::start_with(dir.path(), Some(Key::load(&right).unwrap()), zmq::answer);
    let list = |options: String| butterfly(&stub.endpoint, &format!("nic list {options}"));
    assert_eq!(list(format!("-k {}", right.display())).stdout, "vnic_1\n");
    fails(
        list(format!("--key {}", wrong.display())),
        1,
        "butterflyd cannot decrypt the request: its key is another one",
    );
    fails(
        list(String::new()),
        1,
        "butterflyd rejected the message: it has a key (-k) and the request none, or the other way \
         round",
    );
    assert_eq!(list(format!("-k {}", short.display())).code, 2);
    assert_eq!(list("-k /nowhere".into()).code, 2);
}

#[test]
fn the_environment_names_the_endpoint() {
    let dir = tempfile::tempdir().unwrap();
    let stub = GrpcStub::start(dir.path());
    let output = command(&words("nic list"))
        .env("BUTTERFLY_ENDPOINT", &stub.endpoint)
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"vnic_1\n");
}

#[test]
fn verbose_shows_requests_and_answers() {
    let dir = tempfile::tempdir().unwrap();
    let (v0, v1) = (ZmqStub::start(dir.path()), GrpcStub::start(dir.path()));
    let ran = butterfly(&v1.endpoint, "-v nic del a");
    assert_eq!(ran.stderr, "> DeleteNic {\"id\":\"a\"}\n< DeleteNic {}\n");
    let ran = butterfly(&v0.endpoint, "nic del a -v");
    let request =
        "> messages {\n>   revision: 6\n>   message_0 {\n>     request {\n>       nic_del: \"a\"\n";
    assert!(ran.stderr.starts_with(request), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("<         status: true\n"),
        "{}",
        ran.stderr
    );
}

#[test]
fn completion_scripts_are_read_by_their_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&words(&format!("completion {shell}")));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{shell}");
        for word in ["butterfly", "nic", "member", "log-level"] {
            assert!(ran.stdout.contains(word), "{shell}: {word}");
        }
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        std::fs::write(&script, &ran.stdout).unwrap();
        match std::process::Command::new(shell)
            .arg("-n")
            .arg(&script)
            .status()
        {
            Ok(status) => assert!(status.success(), "{shell} does not read it"),
            Err(error) => eprintln!("{shell} did not read it: {error}"),
        }
    }
}

#[test]
fn bash_completes_a_nested_command() {
    let script = run(&words("completion bash")).stdout;
    let ask = "COMP_WORDS=(butterfly sg rule add g --sg-); COMP_CWORD=5
        _butterfly butterfly --sg- g; echo \"${COMPREPLY[@]}\"";
    match std::process::Command::new("bash")
        .arg("-c")
        .arg(format!("{script}\n{ask}"))
        .output()
    {
        Ok(output) => assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "--sg-members\n",
            "{output:?}"
        ),
        Err(error) => eprintln!("skipped: no bash: {error}"),
    }
}

#[test]
fn version_and_help_are_successes() {
    assert_eq!(
        run(&words("--version")).stdout,
        format!("butterfly {}\n", env!("CARGO_PKG_VERSION"))
    );
    let help = run(&words("sg rule add --help"));
    assert_eq!(help.code, 0);
    assert!(
        help.stdout
            .contains("butterfly sg rule add mysg --ip-proto tcp --port 22 --cidr 42.0.3.1/32")
    );
}
