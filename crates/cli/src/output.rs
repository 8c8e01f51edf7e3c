//! What a command prints: lines and aligned tables for people, JSON (`--json`) for programs.
//! Everything goes through [`Output`], so that a closed pipe ends the command quietly and tests can
//! read it.

use std::borrow::Cow;
use std::io::{self, Write};

use serde_json::Value;

use crate::error::Error;

/// Standard output, or a buffer in tests.
pub struct Output {
    sink: Box<dyn Write>,
    /// Print JSON instead of text.
    pub json: bool,
    /// What goes on although nothing can be printed, if anything does.
    goes_on: Option<&'static str>,
    /// Why nothing is printed any more, while that goes on.
    failed: Option<io::Error>,
}

impl Output {
    /// Prints to standard output.
    pub fn stdout(json: bool) -> Output {
        Output::to(Box::new(io::BufWriter::new(io::stdout())), json)
    }

    fn to(sink: Box<dyn Write>, json: bool) -> Output {
        Output {
            sink,
            json,
            goes_on: None,
            failed: None,
        }
    }

    /// From now on nothing that is printed fails: the first print that cannot be written ends the
    /// printing, which is said once, and `what` goes on.
    pub fn go_on_unheard(&mut self, what: &'static str) {
        self.goes_on = Some(what);
    }

    /// It goes on no more: why not all of it was printed, if it was not. What is printed from now
    /// on fails as ever.
    pub fn heard(&mut self) -> Result<(), Error> {
        self.goes_on = None;
        self.failed.take().map_or(Ok(()), |why| Err(why.into()))
    }

    fn print(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
        if self.failed.is_some() {
            return Ok(());
        }
        match (write(&mut self.sink), self.goes_on) {
            (Err(why), Some(what)) => {
                say(&format!(
                    "butterfly: {what} goes on, and prints nothing any more: {why}\n"
                ));
                self.failed = Some(why);
                Ok(())
            }
            (written, _) => Ok(written?),
        }
    }

    /// Prints text [without control characters](without_controls), a newline added when it has
    /// none.
    pub fn text(&mut self, text: &str) -> Result<(), Error> {
        self.print(|sink| {
            sink.write_all(without_controls(text).as_bytes())?;
            if !text.is_empty() && !text.ends_with('\n') {
                sink.write_all(b"\n")?;
            }
            Ok(())
        })
    }

    /// Says something at the end that is no answer: to programs apart from it, on standard error.
    pub fn last_words(&mut self, words: &str) -> Result<(), Error> {
        if self.json {
            say(&format!("butterfly: {words}\n"));
            return Ok(());
        }
        self.text(words)?;
        self.flush()
    }

    /// Prints one name a line, or a JSON array of strings.
    pub fn names(&mut self, names: &[String]) -> Result<(), Error> {
        if self.json {
            return self.value(&Value::from(names));
        }
        names.iter().try_for_each(|name| self.text(name))
    }

    /// Goes up over so many lines of a terminal, and clears what is there.
    pub fn over(&mut self, lines: usize) -> Result<(), Error> {
        self.print(|sink| write!(sink, "\x1b[{lines}F\x1b[J"))
    }

    /// Prints a JSON value, indented.
    pub fn value(&mut self, value: &Value) -> Result<(), Error> {
        self.text(&escaped(&format!("{value:#}")))
    }

    /// Prints a JSON value on one line: for streams.
    pub fn value_line(&mut self, value: &Value) -> Result<(), Error> {
        self.text(&escaped(&value.to_string()))
    }

    /// Prints a table; an empty one prints nothing, so that `wc -l` minus the heading stays honest.
    pub fn table(&mut self, table: &Table) -> Result<(), Error> {
        self.text(&table.render())
    }

    /// Makes everything printed so far visible.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.print(|sink| sink.flush())
    }
}

/// Says something on stderr. That nobody reads it is no reason to stop.
pub fn say(text: &str) {
    let _ = io::stderr().write_all(without_controls(text).as_bytes());
}

/// What a server has said may be in a text: a terminal is to obey none of it but the ends of lines
/// and tabulators.
fn without_controls(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && !['\n', '\t'].contains(&c);
    match text.contains(obeyed) {
        true => text.replace(obeyed, "\u{fffd}").into(),
        false => text.into(),
    }
}

/// JSON with all control characters in strings as escapes (RFC 8259, section 7), where those beyond
/// ASCII's first 32 may be as they are: so none of a value is lost.
fn escaped(json: &str) -> Cow<'_, str> {
    let raw = |c: char| c.is_control() && c >= '\u{7f}';
    if !json.contains(raw) {
        return json.into();
    }
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match raw(c) {
            true => text += &format!("\\u{:04x}", u32::from(c)),
            false => text.push(c),
        }
    }
    text.into()
}

/// Rows under headings, columns two blanks apart; columns of numbers align right.
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table. A heading that starts with `>` makes a right-aligned column.
    pub fn new(headings: &[&'static str]) -> Table {
        Table {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row: as many cells as there are headings. An empty cell shows as `-`.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.headings.len());
        let dash = |cell: String| {
            if cell.is_empty() {
                "-".to_owned()
            } else {
                cell
            }
        };
        self.rows.push(cells.into_iter().map(dash).collect());
    }

    /// Adds a row of as many cells as there are headings.
    pub fn cells(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.headings.len());
        self.rows.push(cells);
    }

    /// The table as it is printed.
    pub fn render(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let titles: Vec<String> = self
            .headings
            .iter()
            .map(|h| h.trim_start_matches('>').to_owned())
            .collect();
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).max(titles[column].len())
        };
        let widths: Vec<usize> = (0..titles.len()).map(width).collect();
        let mut text = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), heading) in row.iter().zip(&widths).zip(&self.headings) {
                match heading.starts_with('>') {
                    true => line += &format!("{cell:>width$}  "),
                    false => line += &format!("{cell:<width$}  "),
                }
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
pub mod testing {
    //! An [`Output`] whose text a test can read.
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// The other end of a test's output.
    #[derive(Clone, Default)]
    pub struct Screen(Rc<RefCell<Vec<u8>>>);

    impl Screen {
        /// An output that lands here.
        pub fn output(&self, json: bool) -> Output {
            Output::to(Box::new(self.clone()), json)
        }

        /// What was printed so far.
        pub fn text(&self) -> String {
            String::from_utf8(self.0.borrow().clone()).expect("the command line prints UTF-8")
        }
    }

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Screen;
    use super::*;

    #[test]
    fn columns_align_and_numbers_stand_right() {
        let mut table = Table::new(&["ID", ">BYTES", "NOTE"]);
        table.row(["vnic_1".into(), "7".into(), "short".into()]);
        table.row(["v".into(), "123456".into(), String::new()]);
        let screen = Screen::default();
        screen.output(false).table(&table).unwrap();
        assert_eq!(
            screen.text(),
            "ID       BYTES  NOTE\nvnic_1       7  short\nv       123456  -\n"
        );
    }

    /// A sink that takes so many writes, as a disk that fills up, and all again after a failure.
    struct FullAfter(Screen, usize);

    impl Write for FullAfter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let left = self.1.checked_sub(1);
            self.1 = left.unwrap_or(usize::MAX);
            match left {
                Some(_) => self.0.write(bytes),
                None => Err(io::ErrorKind::StorageFull.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_goes_on_prints_until_it_cannot_and_never_fails() {
        let screen = Screen::default();
        let mut out = Output::to(Box::new(FullAfter(screen.clone(), 2)), false);
        out.go_on_unheard("forwarding");
        for text in ["a\n", "b\n", "c\n", "d\n"] {
            out.text(text).unwrap();
            out.flush().unwrap();
        }
        out.over(1).unwrap();
        out.last_words("the end\n").unwrap();
        assert_eq!(screen.text(), "a\nb\n", "no gap in it");
        let why = out.heard().unwrap_err();
        assert!(matches!(&why, Error::Output(why) if why.kind() == io::ErrorKind::StorageFull));
        out.text("e\n").unwrap();
        assert_eq!(screen.text(), "a\nb\ne\n");
        // What does not go on ends.
        let mut out = Output::to(Box::new(FullAfter(screen, 0)), false);
        out.heard().unwrap();
        out.text("f\n").unwrap_err();
    }

    #[test]
    fn what_a_terminal_would_obey_is_replaced() {
        let said = "no \x1b[2J\x1b]0;title\x07NIC\r\u{9b}2J\n\tä\n";
        let shown = "no \u{fffd}[2J\u{fffd}]0;title\u{fffd}NIC\u{fffd}\u{fffd}2J\n\tä\n";
        assert_eq!(without_controls(said), shown);
        let screen = Screen::default();
        screen.output(false).text(said).unwrap();
        assert_eq!(screen.text(), shown);
        // But for what is our own.
        let screen = Screen::default();
        screen.output(false).over(3).unwrap();
        assert_eq!(screen.text(), "\x1b[3F\x1b[J");
    }

    #[test]
    fn a_value_has_all_that_it_has_in_json() {
        let value = Value::from("a\u{85}\u{7f}\n\"\u{1b}\u{e4}");
        let screen = Screen::default();
        screen.output(true).value(&value).unwrap();
        assert_eq!(screen.text(), "\"a\\u0085\\u007f\\n\\\"\\u001b\u{e4}\"\n");
        let read: Value = serde_json::from_str(&screen.text()).unwrap();
        assert_eq!(read, value);
    }

    #[test]
    fn an_empty_table_prints_nothing() {
        let screen = Screen::default();
        screen.output(false).table(&Table::new(&["ID"])).unwrap();
        assert_eq!(screen.text(), "");
    }

    #[test]
    fn names_are_lines_or_an_array() {
        let names = ["a".to_owned(), "b".to_owned()];
        let (text, json) = (Screen::default(), Screen::default());
        text.output(false).names(&names).unwrap();
        json.output(true).names(&names).unwrap();
        assert_eq!(text.text(), "a\nb\n");
        assert_eq!(json.text(), "[\n  \"a\",\n  \"b\"\n]\n");
    }
}
