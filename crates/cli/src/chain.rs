//! From the process's arguments to commands: parts joined by `+` are parsed one by one, all of them
//! before the first one runs, so that a mistake in the last part leaves the daemon untouched.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{FromArgMatches, Parser};

use crate::command::Command;
use crate::error::{EXIT_CODES, Error};
use crate::help;
use crate::options::Global;

const ABOUT: &str =
    "Connects virtual machines and hosts, routes between interfaces, and balances load.

Talks to butterflyd, but for `balance` and `forward`, which need no daemon. Commands can be joined
by `+`: they run in order over one connection, and stop at the first that fails.";

const EXAMPLES: &str = "\
Examples:
  butterfly sg add web + sg rule add web --ip-proto tcp --port 80 --cidr 0.0.0.0/0
  butterfly nic add --id vnic_1 --mac 52:54:00:12:34:01 --vni 1337 --ip 42.0.0.1 --sg web
  butterfly -e tcp://127.0.0.1:9999 nic list";

/// One part of a chain, as clap reads it.
#[derive(Parser, Debug)]
#[command(
    name = "butterfly",
    version = api::VERSION,
    about = ABOUT,
    after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"),
    max_term_width = 110,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Part {
    /// Options of the whole call.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A parsed call.
#[derive(Debug)]
pub struct Chain {
    /// The options of all parts together.
    pub global: Global,
    /// What to do, in order; at least one.
    pub commands: Vec<Command>,
}

/// Why the arguments are no chain.
#[derive(Debug)]
pub enum ParseError {
    /// Clap's answer to one part: a usage error, or the help or version that was asked for.
    Part(clap::Error),
    /// A mistake between the parts.
    Chain(Error),
}

/// Parses the process's arguments, the program's name first.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Chain, ParseError> {
    let mut args = args.into_iter();
    let name = args.next().unwrap_or_else(|| "butterfly".into());
    let args: Vec<OsString> = args.collect();
    let parts: Vec<&[OsString]> = args.split(|arg| arg == "+").collect();
    let mut global = Global::default();
    let mut commands = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        if part.is_empty() && parts.len() > 1 {
            let missing = format!(
                "command {} of {} is missing: `+` joins two commands",
                index + 1,
                parts.len()
            );
            return Err(ParseError::Chain(Error::Usage(missing)));
        }
        let part = help::command()
            .try_get_matches_from(std::iter::once(&name).chain(*part))
            .and_then(|matches| Part::from_arg_matches(&matches))
            .map_err(|error| ParseError::Part(without_shutdown(error)))?;
        global = global.merge(part.global).map_err(ParseError::Chain)?;
        commands.push(part.command);
    }
    Ok(Chain { global, commands })
}

/// What ends the daemon is not proposed to who has mistyped something else.
fn without_shutdown(mut error: clap::Error) -> clap::Error {
    const KIND: ContextKind = ContextKind::SuggestedSubcommand;
    let kept = match error.remove(KIND) {
        Some(ContextValue::String(word)) if word != "shutdown" => Some(ContextValue::String(word)),
        Some(ContextValue::Strings(mut words)) => {
            words.retain(|word| word != "shutdown");
            (!words.is_empty()).then_some(ContextValue::Strings(words))
        }
        _ => None,
    };
    if let Some(kept) = kept {
        error.insert(KIND, kept);
    }
    error
}

#[cfg(test)]
pub mod testing {
    //! Command lines in tests.
    use super::*;

    /// Parses a command line without the program's name; quotes `'…'` keep blanks together and make
    /// empty words.
    pub fn parse_line(line: &str) -> Result<Chain, ParseError> {
        let mut words = vec![OsString::from("butterfly")];
        for (index, text) in line.split('\'').enumerate() {
            match index % 2 {
                0 => words.extend(text.split_whitespace().map(OsString::from)),
                _ => words.push(text.into()),
            }
        }
        parse(words)
    }
}

#[cfg(test)]
mod tests {

    use super::testing::parse_line;
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        help::command().debug_assert();
    }

    #[test]
    fn a_mistyped_word_is_told_its_likeness_but_never_shutdown() {
        let said = |line: &str| match parse_line(line) {
            Err(ParseError::Part(error)) => error.to_string(),
            other => panic!("{other:?}"),
        };
        for word in ["show", "shut", "shutdow", "shutdwn"] {
            let said = said(word);
            assert!(
                said.contains("unrecognized subcommand") && !said.contains("shutdown"),
                "{said}"
            );
        }
        let said = said("statu");
        assert!(said.contains("'status'"), "{said}");
    }

    #[test]
    fn plus_joins_commands_and_options_hold_for_all() {
        let chain =
            parse_line("-e ipc:///a nic list + sg add a b + sg list -v --timeout 5").unwrap();
        assert_eq!(chain.commands.len(), 3);
        assert_eq!(chain.global.endpoint.as_deref(), Some("ipc:///a"));
        assert!(chain.global.verbose && !chain.global.json);
        assert_eq!(chain.global.timeout, Some(5));
    }

    #[test]
    fn options_stand_before_between_or_after() {
        for line in [
            "-e unix:/a nic list",
            "nic -e unix:/a list",
            "nic list -e unix:/a",
            "nic list --endpoint unix:/a",
        ] {
            assert_eq!(
                parse_line(line).unwrap().global.endpoint.as_deref(),
                Some("unix:/a"),
                "{line}"
            );
        }
    }

    #[test]
    fn an_empty_part_is_a_mistake() {
        for line in ["+", "nic list +", "+ nic list", "nic list + + sg list"] {
            assert!(
                matches!(parse_line(line), Err(ParseError::Chain(Error::Usage(_)))),
                "{line}"
            );
        }
    }

    #[test]
    fn a_mistake_in_any_part_stops_all() {
        for line in [
            "",
            "nic",
            "frob",
            "nic list + frob",
            "nic list -t 0",
            "-e unix:/a nic list + sg list -e unix:/b",
        ] {
            assert!(parse_line(line).is_err(), "{line}");
        }
    }
}
