//! The commands as clap reads them, with help that flows: what a command says behind its options is
//! written in lines of the source's width, and printed in those of the terminal's. Lines that are
//! indented, and those before them that end in a colon, stay as they are.

use clap::{Command, CommandFactory};

use crate::chain::Part;

/// The whole command, with everything below it.
pub fn command() -> Command {
    flowing(Part::command())
}

fn flowing(mut command: Command) -> Command {
    if let Some(text) = command.get_after_help() {
        let text = paragraphs(&text.to_string());
        command = command.after_help(text);
    }
    command.mut_subcommands(flowing)
}

fn paragraphs(text: &str) -> String {
    let mut flow = String::new();
    // Whether the line before goes on in this one.
    let mut open = false;
    for line in text.lines() {
        let prose = !line.is_empty() && !line.starts_with(' ');
        if !flow.is_empty() {
            flow.push(if open && prose { ' ' } else { '\n' });
        }
        flow += line;
        open = prose && !line.ends_with(':');
    }
    flow
}

#[test]
fn prose_flows_and_examples_stand() {
    assert_eq!(
        paragraphs("One\ntwo.\nThree.\n\nExamples:\n  do\n  this\n\nFour\nfive:\nsix"),
        "One two. Three.\n\nExamples:\n  do\n  this\n\nFour five:\nsix"
    );
}
