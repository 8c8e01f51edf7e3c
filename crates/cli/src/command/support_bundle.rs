//! `butterfly support-bundle`: a tar.gz of what an issue needs. Files are named by what is in them;
//! what could not be read is a line of `missing`.
//!
//! Secrets are left out, not encrypted: key files are never read, and of what is read, values that
//! go by a secret's name, arguments of check programs, queries of URLs and PEM blocks are replaced;
//! in lines of the journal as well, and in the JSON of the audit log there.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use api::json::LEFT_OUT;
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::doctor;
use crate::client::V1;
use crate::error::Error;
use crate::json;
use crate::session::Session;

const EXAMPLES: &str = "\
Configuration, status, counters and drops of the daemon, what `doctor` finds, the kernel's
interfaces, addresses and routes, the settings file and the last lines of the journal. Addresses
and names of NICs are in it; secrets are not: keys and certificates are not read, and what looks
like a password, a token or a key is replaced. Connections are left out unless --flows is given.
Look into it before you give it away: tar -xzf.

Examples:
  butterfly support-bundle
  butterfly support-bundle /tmp/case-17.tar.gz --flows";

/// What is told of the service. `systemctl status` lists its processes with their arguments, and
/// programs of checks are among them.
const UNIT: &str = "ActiveState,SubState,Result,ExecMainCode,ExecMainStatus,NRestarts,MainPID,\
                    MemoryCurrent,TasksCurrent";
/// Lines of the journal.
const JOURNAL_LINES: &str = "5000";

/// How a block of PEM begins and ends, and what may be in it beside base64 (RFC 1421 and 9580).
const PEM_BEGIN: &str = "-----BEGIN ";
const PEM_END: &str = "-----END ";
const PEM_HEADERS: [&str; 9] = [
    "Proc-Type: ",
    "Content-Domain: ",
    "DEK-Info: ",
    "Key-Info: ",
    "Version: ",
    "Comment: ",
    "Hash: ",
    "Charset: ",
    "MessageID: ",
];

/// `support-bundle`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BundleArgs {
    /// The file to write, which is not there yet [default: butterfly-support-TIME.tar.gz]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The connections, too: who talks to whom
    #[arg(long)]
    flows: bool,
    /// The daemon's settings file
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/butterfly/butterflyd.ini"
    )]
    settings: PathBuf,
}

/// What is collected.
#[derive(Default)]
struct Bundle {
    files: Vec<(String, Content)>,
    missing: Vec<String>,
}

/// What is in a file of the bundle.
enum Content {
    Text(String),
    /// What may not fit into memory. It has no name on the disk.
    File(File),
}

impl Bundle {
    fn add(&mut self, name: &str, content: Result<String, String>) {
        match content {
            Ok(text) => self.files.push((name.to_owned(), Content::Text(text))),
            Err(why) => self.missing.push(format!("{name}: {why}")),
        }
    }

    fn json(&mut self, name: &str, content: Result<Value, Error>) {
        let text = content.map(|mut value| {
            redact(&mut value);
            format!("{value:#}\n")
        });
        self.add(name, text.map_err(|e| e.to_string()));
    }

    /// What a program prints; it gets no input.
    fn program(&mut self, name: &str, words: &[&str]) {
        let output = std::process::Command::new(words[0])
            .args(&words[1..])
            .stdin(std::process::Stdio::null())
            .output();
        let said = match output {
            Ok(output) => {
                let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
                text += &String::from_utf8_lossy(&output.stderr);
                Ok(clean(&text))
            }
            Err(e) => Err(format!("{}: {e}", words[0])),
        };
        self.add(name, said);
    }

    fn file(&mut self, name: &str, path: &str) {
        let text = std::fs::read_to_string(path);
        self.add(
            name,
            text.map(|text| clean(&text))
                .map_err(|e| format!("{path}: {e}")),
        );
    }
}

impl BundleArgs {
    /// Collects and writes. What cannot be had is no failure.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs());
        let file = self.file.clone();
        let file = file.unwrap_or_else(|| format!("butterfly-support-{now}.tar.gz").into());
        // Before all the work: the file is ours alone, and no other's.
        let opened = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&file);
        let opened =
            opened.map_err(|e| Error::Usage(format!("{} cannot be made: {e}", file.display())))?;
        let mut bundle = Bundle::default();
        self.of_daemon(session, &file, &mut bundle).await?;
        self.of_host(&mut bundle);
        let missing = bundle.missing.join("\n");
        bundle.add("missing", Ok(missing + "\n"));
        let names: Vec<String> = bundle.files.iter().map(|(name, _)| name.clone()).collect();
        write(opened, bundle.files, now)?;
        if session.out.json {
            let path = file.display().to_string();
            return session.out.value(&json!({
                "file": path,
                "content": names,
                "missing": bundle.missing,
            }));
        }
        session
            .out
            .text(&format!("{}: {} files", file.display(), names.len()))?;
        bundle
            .missing
            .iter()
            .try_for_each(|line| session.out.text(&format!("  not there: {line}")))
    }

    async fn of_daemon(
        &self,
        session: &mut Session,
        file: &Path,
        bundle: &mut Bundle,
    ) -> Result<(), Error> {
        let asked = doctor::ask(session).await?;
        match crate::doctor::examine(&asked, &[]).await {
            Ok(findings) => {
                let all = findings.iter().map(doctor::value).collect();
                bundle.json("doctor.json", Ok(all));
            }
            Err(why) => bundle.missing.push(format!("doctor.json: {why}")),
        }
        if let Some(why) = asked.silent {
            bundle.missing.push(format!("the daemon's files: {why}"));
            return Ok(());
        }
        let client = session.client().await?;
        let status = client.status().await;
        bundle.json("status.json", status.map(|one| json::full("Status", &one)));
        let config = client.config().await;
        bundle.json(
            "config.json",
            config.map(|one| json::sparse("Config", &one)),
        );
        let nics = client.nics().await;
        let nics = nics.map(|all| all.iter().map(|one| json::full("NicStatus", one)).collect());
        bundle.json("nics.json", nics);
        let stats = client.nics_stats(&[]).await;
        bundle.json(
            "nic-stats.json",
            stats.map(|one| json::full("ListNicStatsResponse", &one)),
        );
        let drops = client.drops("", false).await;
        bundle.json(
            "drops.json",
            drops.map(|one| json::full("ListDropsResponse", &one)),
        );
        let workers = client.workers().await;
        bundle.json(
            "workers.json",
            workers.map(|one| json::full("ListWorkersResponse", &one)),
        );
        let rules = client.rule_counters("").await;
        let rules = rules.map(|all| {
            all.iter()
                .map(|one| json::full("RuleCounter", one))
                .collect()
        });
        bundle.json("rules.json", rules);
        let v1 = client.only_v1("support-bundle")?;
        let uplinks = v1.uplinks().await;
        bundle.json(
            "uplinks.json",
            uplinks.map(|one| json::full("ListUplinksResponse", &one)),
        );
        let services = v1.services().await;
        let services = services.map(|all| {
            all.iter()
                .map(|one| json::full("ServiceStatus", one))
                .collect()
        });
        bundle.json("services.json", services);
        let router = v1.router_status().await;
        bundle.json(
            "router.json",
            router.map(|one| json::full("RouterStatus", &one)),
        );
        if self.flows {
            const NAME: &str = "flows.jsonl";
            match flows(v1, file).await {
                Ok(lines) => bundle.files.push((NAME.into(), Content::File(lines))),
                Err(why) => bundle.missing.push(format!("{NAME}: {why}")),
            }
        }
        Ok(())
    }

    fn of_host(&self, bundle: &mut Bundle) {
        bundle.add(
            "version",
            Ok(format!("butterfly {}\n", env!("CARGO_PKG_VERSION"))),
        );
        bundle.file("butterflyd.ini", &self.settings.display().to_string());
        bundle.program("kernel", &["uname", "-a"]);
        bundle.file("os-release", "/etc/os-release");
        bundle.file("meminfo", "/proc/meminfo");
        bundle.file("cmdline", "/proc/cmdline");
        bundle.program("links", &["ip", "-d", "-s", "link"]);
        bundle.program("addresses", &["ip", "address"]);
        bundle.program("routes", &["ip", "route", "show", "table", "all"]);
        bundle.program("rules", &["ip", "rule"]);
        bundle.program("neighbours", &["ip", "neighbour"]);
        bundle.program("unit", &["systemctl", "show", "-p", UNIT, "butterflyd"]);
        let journal = [
            "journalctl",
            "-u",
            "butterflyd",
            "--no-pager",
            "-n",
            JOURNAL_LINES,
        ];
        bundle.program("journal", &journal);
    }
}

/// The connections, a line of JSON each, beside the bundle: a table of them does not fit into the
/// memory of a command, and what is in /tmp may be in memory.
async fn flows(v1: &mut V1, file: &Path) -> Result<File, Error> {
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let lines = tempfile::tempfile_in(folder.unwrap_or(Path::new(".")))?;
    let mut lines = BufWriter::new(lines);
    let mut stream = v1.flows(api::v1::ListFlowsRequest::default()).await?;
    while let Some(flow) = v1.next_in_time(&mut stream).await? {
        let mut flow = json::full("Flow", &flow);
        redact(&mut flow);
        writeln!(lines, "{flow}")?;
    }
    Ok(lines.into_inner().map_err(|e| e.into_error())?)
}

fn write(file: File, files: Vec<(String, Content)>, now: u64) -> Result<(), Error> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600);
        header.set_mtime(now);
        let path = format!("butterfly-support/{name}");
        match content {
            Content::Text(text) => {
                header.set_size(text.len() as u64);
                archive.append_data(&mut header, path, text.as_bytes())?;
            }
            Content::File(mut file) => {
                header.set_size(file.stream_position()?);
                file.rewind()?;
                archive.append_data(&mut header, path, file)?;
            }
        }
    }
    archive.into_inner()?.finish()?.flush()?;
    Ok(())
}

/// Whether what goes by this name is a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    [
        "password",
        "passwd",
        "secret",
        "token",
        "credential",
        "authorization",
        "psk",
    ]
    .iter()
    .any(|word| name.contains(word))
        || matches!(
            name.as_str(),
            "key_data" | "private_key" | "apikey" | "api_key"
        )
}

/// Takes secrets out of a document: what health checks have of them, what goes by a secret's name,
/// and what of a text does.
fn redact(value: &mut Value) {
    api::json::leave_out_secrets(value);
    take_named(value);
}

fn take_named(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match is_secret(name) {
                    true => *field = Value::from(LEFT_OUT),
                    false => take_named(field),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(take_named),
        Value::String(text) => *text = clean_text(text).0,
        _ => {}
    }
}

/// Takes secrets out of lines: PEM blocks, and what is one in the JSON and the text of each. Who
/// may write a part of a line can begin a block there, so one goes on only as PEM does.
fn clean(text: &str) -> String {
    let (mut cleaned, mut in_block) = (String::with_capacity(text.len()), false);
    for line in text.lines() {
        in_block &= goes_on(line);
        if !in_block {
            cleaned.push_str(&clean_line(line));
            cleaned.push('\n');
        }
        in_block = match line.rfind(PEM_BEGIN) {
            Some(at) => !line[at..].contains(PEM_END),
            None => in_block && !line.contains(PEM_END),
        };
    }
    cleaned
}

/// Whether a line may be of a PEM block that has begun: its end, a header, base64 or nothing.
fn goes_on(line: &str) -> bool {
    // In the journal it is behind the process that wrote it, elsewhere perhaps in a comment or
    // between quotes.
    let text = line.split_once("]: ").map_or(line, |(_, text)| text);
    let text = text.trim_matches(|c: char| c.is_whitespace() || ";#,\"'".contains(c));
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=\\".contains(&byte);
    text.starts_with(PEM_END)
        || PEM_HEADERS.iter().any(|header| text.starts_with(header))
        || text.bytes().all(is_base64)
}

fn clean_line(line: &str) -> String {
    let mut cleaned = String::with_capacity(line.len());
    let (mut rest, mut from) = (line, 0);
    while let Some(brace) = rest[from..].find('{') {
        let at = from + brace;
        let mut documents = serde_json::Deserializer::from_str(&rest[at..]).into_iter::<Value>();
        let Some(Ok(mut document)) = documents.next() else {
            from = at + 1;
            continue;
        };
        let (text, is_cut) = clean_text(&rest[..at]);
        cleaned.push_str(&text);
        if is_cut {
            return cleaned;
        }
        redact(&mut document);
        cleaned.push_str(&document.to_string());
        (rest, from) = (&rest[at + documents.byte_offset()..], 0);
    }
    cleaned + &clean_text(rest).0
}

/// Takes out what follows `name=`, `name:` or `--name ` of a secret, and what a PEM block begins
/// with, to the text's end, since where a secret ends nobody can tell; and queries of URLs. True:
/// it was cut so.
fn clean_text(text: &str) -> (String, bool) {
    let named = text.match_indices(['=', ':', ' ']).find(|(at, separator)| {
        let before = match *separator {
            " " => &text[..*at],
            _ => text[..*at].trim_end(),
        };
        // As in JSON that was cut off, and in JSON within a string.
        let bare = before.trim_end_matches(['"', '\'', '\\']);
        let mut words = bare.rsplit(|c: char| !(c.is_alphanumeric() || "_-".contains(c)));
        let name = words.next().unwrap_or_default();
        match *separator {
            " " => name.starts_with('-') && is_secret(name),
            _ => is_secret(name) || (name == "words" && bare.len() < before.len()),
        }
    });
    let named = named.map(|(at, _)| at + 1);
    match named.into_iter().chain(text.find(PEM_BEGIN)).min() {
        Some(at) => (without_queries(&text[..at]) + LEFT_OUT, true),
        None => (without_queries(text), false),
    }
}

/// Takes out what follows `?` in a word with a slash before it.
fn without_queries(text: &str) -> String {
    let ends_word = |c: char| c.is_whitespace() || "\"'".contains(c);
    let mut cleaned = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('?') {
        let (before, behind) = rest.split_at(at + 1);
        cleaned.push_str(before);
        rest = behind;
        let is_path = before
            .rsplit(ends_word)
            .next()
            .unwrap_or(before)
            .contains('/');
        let query = behind.find(ends_word).unwrap_or(behind.len());
        if is_path && query > 0 && !behind.starts_with(LEFT_OUT) {
            cleaned.push_str(LEFT_OUT);
            rest = &behind[query..];
        }
    }
    cleaned + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_stay_in_documents() {
        let mut value = json!({
            "check": {"command": {"words": ["probe", "--password", "hunter2"]}},
            "http": {"path": "/health?token=hunter2", "host": "a"},
            "api_token": "hunter2",
            "list": [{"Secret": {"deep": "hunter2"}}],
            "key": {"vip": "198.51.100.1"},
        });
        redact(&mut value);
        assert!(!value.to_string().contains("hunter2"), "{value}");
        assert_eq!(value["key"]["vip"], "198.51.100.1");
        assert_eq!(value["check"]["command"]["words"][0], "probe");
        assert_eq!(value["http"]["path"], "/health?(left out)");
    }

    #[test]
    fn nor_in_lines() {
        let text = "ip = 192.0.2.1\nbgp-password = hunter2 ; a comment\n[x] Token: hunter2\n\
                    -----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n\
                    url=http://a/?secret=hunter2&b\n\
                    encryption_key_path = /etc/butterfly/key\n";
        let cleaned = clean(text);
        assert!(!cleaned.contains("hunter2"), "{cleaned}");
        for kept in [
            "ip = 192.0.2.1\n",
            "bgp-password =(left out)\n",
            "key_path = /etc/butterfly/key\n",
        ] {
            assert!(cleaned.contains(kept), "{cleaned}");
        }
    }

    /// The audit log is in the journal: what a daemon writes there now, and what one before it did.
    #[test]
    fn nor_in_the_audit_log_s_lines() {
        const BEGIN: &str = "Jan 02 03:04:05 host butterflyd[42]: ";
        let check = |check: &str| {
            let details = r#"["check: none -> command /p --token hunter2"]"#;
            let head = r#"{"time":"2026-01-02T03:04:05.678Z","request":"PutService","result":"ok""#;
            let changes = format!(r#""changes":[{{"details":{details}}}]"#);
            let arguments = format!(r#""arguments":{{"service":{{"check":{check}}}}}"#);
            format!("{BEGIN}{head},{changes},{arguments}}} behind")
        };
        let words = r#"{"command":{"words":["/p","--password","hunter2"]}}"#;
        for (line, kept) in [
            (check(words), r#"["/p","(left out)","(left out)"]"#),
            (
                check(r#"{"password":"hunter2"}"#),
                r#""password":"(left out)""#,
            ),
            (
                check(r#"{"http":{"path":"/up?key=hunter2"}}"#),
                "/up?(left out)",
            ),
            (check(words), "/p --token (left out)"),
            (check(words), " behind\n"),
            (check(words), "\"time\":\"2026-01-02T03:04:05.678Z\""),
            // Cut off, so that it is no document.
            (check(words).replace("]}}", ""), r#""words":(left out)"#),
            (
                format!(r#"{BEGIN}asked for {{"password" : "hunter2""#),
                r#""password" :(left out)"#,
            ),
            (
                format!(r#"{BEGIN}asked for {{\"password\":\"hunter2\"}}"#),
                r#"asked for {\"password\":(left out)"#,
            ),
            (
                format!("{BEGIN}GET http://a/up?key=hunter2 is well"),
                "/up?(left out) is well",
            ),
            (
                format!("{BEGIN}GET /up?(left out) every 2000 ms"),
                "GET /up?(left out) every 2000 ms",
            ),
            (format!("{BEGIN}is /run there? yes"), "is /run there? yes"),
            (format!("{BEGIN}{{no document}} {{}}"), "{no document} {}"),
        ] {
            let cleaned = clean(&line);
            assert!(!cleaned.contains("hunter2"), "{cleaned}");
            assert!(cleaned.starts_with(BEGIN), "{cleaned}");
            assert!(cleaned.contains(kept), "{kept} is in {cleaned}");
        }
        // A client has brought what a block of PEM begins with: it takes what is behind it in the
        // same value or text, and no line that is not PEM.
        let behind = format!("{BEGIN}the client is gone");
        for line in [
            format!(r#"{BEGIN}{{"nic":"-----BEGIN x hunter2","request":"PutNic"}} "PutNic""#),
            format!(r#"{BEGIN}"PutNic" of -----BEGIN x hunter2"#),
        ] {
            let cleaned = clean(&format!("{line}\n{behind}\n"));
            assert!(!cleaned.contains("hunter2"), "{cleaned}");
            assert!(cleaned.starts_with(BEGIN), "{cleaned}");
            assert!(cleaned.contains(r#""PutNic""#), "{cleaned}");
            assert!(cleaned.ends_with(&format!("\n{behind}\n")), "{cleaned}");
        }
        // One that is there goes whole, as one entry of several lines, as an entry for each, and as
        // a comment.
        for start in [BEGIN, "       ", ";"] {
            let block = [
                "-----BEGIN RSA PRIVATE KEY-----",
                "Proc-Type: 4,ENCRYPTED",
                "DEK-Info: AES-128-CBC,hunter2",
                "",
                "hunter2/+",
                "hunter2=",
                "-----END RSA PRIVATE KEY-----",
            ];
            let block: String = block.map(|line| format!("{start}{line}\n")).concat();
            let cleaned = clean(&format!("{BEGIN}a key\n{block}{behind}\n"));
            let left_out = format!("{BEGIN}a key\n{start}{LEFT_OUT}\n{behind}\n");
            assert_eq!(cleaned, left_out);
        }
    }
}
