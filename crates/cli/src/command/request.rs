//! `butterfly request`: sends the requests of a text-format `Messages`. Over API v0 as they are;
//! over API v1 each by the operation that does the same, answered in v0's form.

use std::path::PathBuf;

use api::text_format;
use api::v0::{Message, Messages};
use clap::Args;
use serde_json::json;

use super::nic_state::read_file;
use crate::client::{message_error, refusal};
use crate::error::Error;
use crate::session::Session;

/// `request`.
#[derive(Args, Debug)]
#[command(after_help = "\
All requests are sent; the exit code is 1 when one of them was refused.

Examples:
  butterfly request saved
  echo 'messages { revision: 6 message_0 { request { nic_list: true } } }' \
    | butterfly request - --stdout")]
pub struct RequestArgs {
    /// The requests, in protobuf text format; - is standard input
    file: PathBuf,
    /// Print the answers, in protobuf text format
    #[arg(short, long)]
    stdout: bool,
}

impl RequestArgs {
    /// Sends the requests and prints the answers.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let file = self.file.display().to_string();
        let text = String::from_utf8(read_file(&self.file)?);
        let text = text.map_err(|_| Error::Usage(format!("{file} is no text")))?;
        let requests =
            text_format::parse(&text).map_err(|error| Error::Usage(format!("{file}: {error}")))?;
        if requests.encrypted.is_some() {
            return Err(Error::Usage(format!(
                "{file} is encrypted already: write it in the clear and give the key with -k"
            )));
        }
        if requests.messages.is_empty() {
            // What `dump` writes of a daemon that has nothing.
            return Ok(());
        }
        let answers = session.client().await?.request(requests).await?;
        let mut printed = Ok(());
        if self.stdout || session.out.json {
            let text = text_format::print(&answers);
            printed = match session.out.json {
                true => session.out.value(&json!({ "messages": text })),
                false => session.out.text(&text),
            };
        }
        match refusals(&answers).as_slice() {
            [] => printed,
            refused => Err(Error::Refused(refused.join("; "))),
        }
    }
}

/// Why requests were refused, each with its number when there are several.
fn refusals(answers: &Messages) -> Vec<String> {
    let alone = answers.messages.len() == 1;
    let numbered = |(index, message): (usize, &Message)| {
        let why = why_refused(message)?;
        Some(if alone {
            why
        } else {
            format!("request {}: {why}", index + 1)
        })
    };
    answers
        .messages
        .iter()
        .enumerate()
        .filter_map(numbered)
        .collect()
}

fn why_refused(message: &Message) -> Option<String> {
    if let Some(error) = message_error(message) {
        return Some(error);
    }
    match message
        .message_0
        .as_ref()
        .and_then(|message| message.response.as_ref())
    {
        Some(response) => refusal(response),
        None => Some("an answer without a response".into()),
    }
}
