//! The terminal: a table that is drawn anew when a sample or a key has come.

use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Cell as Shown, Paragraph, Row, Table, TableState};
use tokio::sync::mpsc;

use super::views::{Cell, Order, Sample, View};
use crate::client::Client;
use crate::error::Error;

const HELP: &str = "1-6 view  s sort  r reverse  / filter  p pause  q quit";

/// What is shown, and how.
struct Screen {
    view: View,
    order: Order,
    filter: String,
    /// Keys go into the filter.
    typing: bool,
    paused: bool,
    before: Option<(Sample, Instant)>,
    now: Option<(Sample, Instant)>,
    at: TableState,
    /// Why there is nothing new.
    failure: String,
}

/// What a key asks for.
#[derive(PartialEq, Eq, Debug)]
enum Next {
    Quit,
    Draw,
    /// Another view: what was sampled is of no use.
    Sample,
}

/// Shows until a key ends it. The terminal is then as it was.
pub async fn run(
    client: &mut Client,
    view: View,
    order: Order,
    filter: String,
    interval: Duration,
) -> Result<(), Error> {
    let mut terminal = ratatui::try_init()?;
    let shown = show(
        &mut terminal,
        client,
        Screen::new(view, order, filter),
        interval,
    )
    .await;
    ratatui::restore();
    shown
}

async fn show(
    terminal: &mut DefaultTerminal,
    client: &mut Client,
    mut screen: Screen,
    interval: Duration,
) -> Result<(), Error> {
    let mut events = listen();
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        let mut next = tokio::select! {
            // A key is not to wait for the daemon.
            biased;
            event = events.recv() => screen.event(event),
            _ = ticks.tick() => if screen.paused { Next::Draw } else { Next::Sample },
        };
        while next == Next::Sample {
            let sample = Sample::take(client, screen.view);
            next = sampled(terminal, &mut events, &mut screen, sample).await?;
        }
        if next == Next::Quit {
            return Ok(());
        }
    }
}

/// Waits for a sample and shows it; what a key asks for meanwhile, if that is more than to draw.
async fn sampled(
    terminal: &mut DefaultTerminal,
    events: &mut mpsc::Receiver<Event>,
    screen: &mut Screen,
    sample: impl Future<Output = Result<Sample, Error>>,
) -> Result<Next, Error> {
    let mut sample = std::pin::pin!(sample);
    loop {
        // A key may have turned to another view, which begins to be measured.
        terminal.draw(|frame| screen.draw(frame))?;
        let was_paused = screen.paused;
        let next = tokio::select! {
            biased;
            event = events.recv() => screen.event(event),
            sample = &mut sample => {
                screen.take(sample)?;
                return Ok(Next::Draw);
            }
        };
        // What was shown when it was paused stays.
        let pauses = screen.paused && !was_paused;
        if next != Next::Draw || pauses {
            return Ok(next);
        }
    }
}

/// Keys and changes of the terminal's size, from a thread that may wait for them. It ends with the
/// process.
fn listen() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Screen {
    fn new(view: View, order: Order, filter: String) -> Screen {
        Screen {
            view,
            order,
            filter,
            typing: false,
            paused: false,
            before: None,
            now: None,
            at: TableState::default(),
            failure: String::new(),
        }
    }

    /// A daemon that goes is waited for; what it showed last stays.
    fn take(&mut self, sample: Result<Sample, Error>) -> Result<(), Error> {
        match sample {
            Ok(sample) => {
                self.before = self.now.replace((sample, Instant::now()));
                self.failure.clear();
            }
            Err(error @ (Error::Usage(_) | Error::Output(_))) => return Err(error),
            Err(error) => self.failure = error.to_string(),
        }
        Ok(())
    }

    /// None: nobody hears keys any more.
    fn event(&mut self, event: Option<Event>) -> Next {
        match event {
            None => Next::Quit,
            Some(Event::Key(key)) if key.kind != KeyEventKind::Release => self.key(key),
            Some(_) => Next::Draw,
        }
    }

    fn turn_to(&mut self, view: View) -> Next {
        if view == self.view {
            return Next::Draw;
        }
        self.view = view;
        self.order = Order::new(view, None, false).unwrap_or(self.order);
        (self.before, self.now, self.at) = (None, None, TableState::default());
        Next::Sample
    }

    fn key(&mut self, key: KeyEvent) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Next::Quit;
        }
        if self.typing {
            match key.code {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(letter) => self.filter.push(letter),
                _ => {}
            }
            return Next::Draw;
        }
        let place = View::ALL
            .iter()
            .position(|view| *view == self.view)
            .unwrap_or(0);
        let beside = |step: usize| View::ALL[(place + step) % View::ALL.len()];
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char(digit @ '1'..='6') => {
                return self.turn_to(View::ALL[digit as usize - '1' as usize]);
            }
            KeyCode::Tab | KeyCode::Right => return self.turn_to(beside(1)),
            KeyCode::BackTab | KeyCode::Left => return self.turn_to(beside(View::ALL.len() - 1)),
            KeyCode::Char('s') => self.order = self.order.next(self.view),
            KeyCode::Char('r') => self.order.descending = !self.order.descending,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Down => self.at.scroll_down_by(1),
            KeyCode::Up => self.at.scroll_up_by(1),
            KeyCode::PageDown => self.at.scroll_down_by(20),
            KeyCode::PageUp => self.at.scroll_up_by(20),
            KeyCode::Home => self.at.select_first(),
            KeyCode::End => self.at.select_last(),
            _ => {}
        }
        Next::Draw
    }

    fn rows(&self) -> Vec<Vec<Cell>> {
        let (Some((now, at)), Some((before, then))) = (&self.now, &self.before) else {
            return Vec::new();
        };
        now.since(before, at.duration_since(*then))
            .shown(&self.order, &self.filter)
    }

    fn draw(&mut self, frame: &mut Frame) {
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ]);
        let [top, middle, bottom] = areas.areas(frame.area());
        let rows = self.rows();
        frame.render_widget(Paragraph::new(self.title(rows.len())), top);
        frame.render_widget(Paragraph::new(self.foot()), bottom);
        let columns = self.view.columns();
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].text().chars().count());
            let longest = cells.max().unwrap_or(0).min(60);
            Constraint::Length(longest.max(columns[column].len() + 1) as u16)
        };
        let widths: Vec<Constraint> = (0..columns.len()).map(width).collect();
        let aligned = |column: usize, text: String| {
            let is_number = columns[column].starts_with('>');
            let alignment = if is_number {
                Alignment::Right
            } else {
                Alignment::Left
            };
            Shown::from(Text::from(text).alignment(alignment))
        };
        let heading = columns.iter().enumerate().map(|(column, title)| {
            let mark = match (column == self.order.column, self.order.descending) {
                (false, _) => "",
                (true, true) => "v",
                (true, false) => "^",
            };
            aligned(column, format!("{}{mark}", title.trim_start_matches('>')))
        });
        let heading = Row::new(heading).style(Style::new().add_modifier(Modifier::REVERSED));
        let body = rows.iter().map(|row| {
            let cells = row.iter().enumerate();
            Row::new(cells.map(|(column, cell)| aligned(column, cell.text().to_owned())))
        });
        let table = Table::new(body, widths).header(heading).column_spacing(2);
        let table = table.row_highlight_style(Style::new().add_modifier(Modifier::BOLD));
        frame.render_stateful_widget(table, middle, &mut self.at);
    }

    fn title(&self, rows: usize) -> String {
        let views = View::ALL
            .iter()
            .zip(1..)
            .map(|(view, number)| match *view == self.view {
                true => format!("[{number} {}]", view.name()),
                false => format!(" {number} {} ", view.name()),
            });
        let views: Vec<String> = views.collect();
        let state = match (self.paused, self.now.is_some() && self.before.is_some()) {
            (true, _) => "paused".to_owned(),
            (false, false) => "measuring".to_owned(),
            (false, true) => format!("{rows} rows"),
        };
        format!("butterfly top  {}  {state}", views.join(""))
    }

    fn foot(&self) -> String {
        match (self.typing, self.filter.is_empty(), self.failure.is_empty()) {
            (true, ..) => format!("filter: {}_", self.filter),
            (_, _, false) => self.failure.clone(),
            (_, false, _) => format!("filter: {}   {HELP}", self.filter),
            _ => HELP.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::v1;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn key(code: KeyCode) -> KeyEvent {
        KeyEvent::new(code, KeyModifiers::NONE)
    }

    #[test]
    fn keys_turn_sort_filter_and_quit() {
        let order = Order::new(View::Nics, None, false).unwrap();
        let mut screen = Screen::new(View::Nics, order, String::new());
        assert_eq!(screen.key(key(KeyCode::Char('4'))), Next::Sample);
        assert_eq!(screen.view, View::Drops);
        assert_eq!(screen.key(key(KeyCode::Tab)), Next::Sample);
        assert_eq!(screen.view, View::Workers);
        let before = screen.order;
        screen.key(key(KeyCode::Char('s')));
        assert_ne!(screen.order.column, before.column);
        for letter in ['/', 'q', '1'] {
            assert_eq!(screen.key(key(KeyCode::Char(letter))), Next::Draw);
        }
        screen.key(key(KeyCode::Backspace));
        assert_eq!((screen.filter.as_str(), screen.view), ("q", View::Workers));
        screen.key(key(KeyCode::Enter));
        assert_eq!(screen.key(key(KeyCode::Char('q'))), Next::Quit);
    }

    #[test]
    fn a_screen_has_its_rows_under_their_headings() {
        let sample = |time_ns, frames| {
            let nics = ["quiet", "busy"].map(|id| v1::NicStats {
                id: id.into(),
                ingress_frames: if id == "busy" { frames } else { 0 },
                ..Default::default()
            });
            Sample::Nics(v1::ListNicStatsResponse {
                time_ns,
                nics: nics.into(),
            })
        };
        let order = Order::new(View::Nics, None, false).unwrap();
        let mut screen = Screen::new(View::Nics, order, String::new());
        let now = Instant::now();
        screen.before = Some((sample(0, 0), now));
        screen.now = Some((sample(1_000_000_000, 1234), now));
        let mut terminal = Terminal::new(TestBackend::new(100, 6)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let shown = terminal.backend().to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert!(
            lines[0].contains("[1 nics]") && lines[0].contains("2 rows"),
            "{shown}"
        );
        assert!(lines[1].contains("IN FRAMES/sv"), "{shown}");
        assert!(
            lines[2].contains("busy") && lines[2].contains("1234"),
            "{shown}"
        );
        assert!(lines[3].contains("quiet"), "{shown}");
    }
}
