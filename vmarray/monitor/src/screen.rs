//! The terminal screen of the monitor: a table of devices and a table of channels (shares of a device),
//! refreshed twice a second.

use std::io;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::widgets::{Block, Paragraph, Row};

use crate::table::Table;
use crate::watched::Watched;

/// The period in which programs publish statistics.
const PERIOD: Duration = Duration::from_millis(500);

/// Shows the published statistics of running programs until the user quits.
pub fn run() -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal);
    ratatui::restore();
    shown
}

fn show(terminal: &mut ratatui::DefaultTerminal) -> io::Result<()> {
    let (mut watched, mut skipped) = (Watched::default(), 0_usize);
    loop {
        watched.read(vmarray::monitor::programs());
        let next = Instant::now() + PERIOD;
        loop {
            terminal.draw(|frame| draw(frame, &watched, &mut skipped))?;
            if !event::poll(next.saturating_duration_since(Instant::now()))? {
                break;
            }
            let Event::Key(key) = event::read()? else { continue };
            if key.kind == KeyEventKind::Release {
                continue;
            }
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Down => skipped += 1,
                KeyCode::Up => skipped = skipped.saturating_sub(1),
                _ => {}
            }
        }
    }
}

/// Draws both tables; skips the first `skipped` rows of the second one.
fn draw(frame: &mut Frame<'_>, watched: &Watched, skipped: &mut usize) {
    let (cards, channels) = (Table::of_cards(watched), Table::of_channels(watched));
    let high = u16::try_from(cards.rows.len()).unwrap_or(u16::MAX).saturating_add(3);
    let parts =
        [Constraint::Length(high.min(frame.area().height / 2)), Constraint::Min(3), Constraint::Length(1)];
    let [above, below, last] = Layout::vertical(parts).areas(frame.area());
    *skipped = (*skipped).min(channels.rows.len().saturating_sub(1));
    frame.render_widget(widget(&cards, "cards", 0), above);
    frame.render_widget(widget(&channels, "arrays", *skipped), below);
    let hint = if channels.rows.is_empty() {
        "no program publishes statistics: start one with VMARRAY_PUBLISH=1   q: quit".to_owned()
    } else if watched.left_out() > 0 {
        format!("{} more arrays are not listed   q: quit   up, down: scroll", watched.left_out())
    } else {
        "q: quit   up, down: scroll".to_owned()
    };
    frame.render_widget(Paragraph::new(hint).dim(), last);
}

fn widget(table: &Table, title: &'static str, skipped: usize) -> ratatui::widgets::Table<'static> {
    let widths = table.widths().into_iter().map(|width| Constraint::Length(width.min(60) as u16));
    let rows = table.rows.iter().skip(skipped).map(|row| Row::new(row.clone()));
    ratatui::widgets::Table::new(rows, widths)
        .header(Row::new(table.header.clone()).style(Style::new().bold()))
        .column_spacing(2)
        .block(Block::bordered().title(title))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::watched::tests::program;

    #[test]
    fn a_terminal_of_any_size_is_drawn_on() {
        let mut watched = Watched::default();
        for (width, height) in [(180, 20), (40, 5), (1, 1), (0, 0)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &watched, &mut 0)).unwrap();
            watched.read(vec![program(1, u64::from(width)), program(2, 1)]);
            let mut skipped = 100;
            terminal.draw(|frame| draw(frame, &watched, &mut skipped)).unwrap();
            assert_eq!(skipped, 3);
            if width == 180 {
                let text = terminal.backend().to_string();
                assert!(text.contains("card 1 (cuda pci:1)") && text.contains("walker"), "{text}");
            }
        }
    }
}
