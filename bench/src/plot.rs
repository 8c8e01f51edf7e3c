//! A table as a picture: six panels in one SVG.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::exchange::Kind;
use crate::load::Load;
use crate::peers::{Peer, PeerError};
use crate::plan::Row;
use crate::report::Samples;
use crate::results::{Column as _, Table};

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// A point of a line: where on the x axis, and its samples.
type Points = Vec<(f64, Samples)>;

/// Writes `switch-REGIME.svg`.
pub fn write(dir: &Path, regime: &str, table: &Table<Row, Peer>) -> Result<(), PeerError> {
    let path = dir.join(format!("switch-{regime}.svg"));
    let fail = |error: &dyn std::fmt::Display| PeerError(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(dir).map_err(|error| fail(&error))?;
    draw(&path, regime, table).map_err(|error| fail(&error))
}

fn draw(path: &Path, regime: &str, table: &Table<Row, Peer>) -> Drawn {
    let root = SVGBackend::new(path, (1500, 900)).into_drawing_area();
    root.fill(&WHITE)?;
    let title =
        format!("One core, cores {regime}: medians, and from the least tenth to the greatest");
    let root = root.titled(&title, ("sans-serif", 20))?;
    let panels = root.split_evenly((2, 3));
    let sizes = lines(table, |load| match load {
        Load::Udp {
            frame_len,
            flows: 1,
        } => Some((frame_len as f64, load.frame_bytes() as f64 * 8e-9)),
        _ => None,
    });
    line_panel(&panels[0], "Gbit/s over bytes a frame", &sizes, true)?;
    let flows = lines(table, |load| match load {
        Load::Udp {
            frame_len: 64,
            flows,
        } => Some((f64::from(flows).log10(), 1e-6)),
        _ => None,
    });
    line_panel(
        &panels[1],
        "Million 64-byte frames/s over flows (powers of ten)",
        &flows,
        false,
    )?;
    let gbit = Load::Tso.frame_bytes() as f64 * 8e-9;
    let tso = [(Row::Rate(Load::Tso), gbit)];
    bar_panel(&panels[2], "Gbit/s of 64 KiB TCP frames", table, &tso, true)?;
    let connections = [(Row::Exchanges(Kind::Connection), 1e-6)];
    bar_panel(
        &panels[3],
        "Million TCP connections/s",
        table,
        &connections,
        false,
    )?;
    for (panel, loaded, title) in [
        (4, false, "Round trip alone, us: p50, p99"),
        (5, true, "Round trip at 80 % load, us: p50, p99"),
    ] {
        let rows = [500, 990].map(|per_mille| (Row::RoundTrip { loaded, per_mille }, 1e6));
        bar_panel(&panels[panel], title, table, &rows, false)?;
    }
    root.present()?;
    Ok(())
}

/// For each switch the rows that `place` gives an x and a scale.
fn lines(
    table: &Table<Row, Peer>,
    place: impl Fn(Load) -> Option<(f64, f64)>,
) -> Vec<(Peer, Points)> {
    let points = |peer: &Peer| {
        let placed = table.rows.iter().filter_map(|row| match row {
            Row::Rate(load) => {
                place(*load).map(|(x, scale)| (x, table.get(*peer, *row).scaled(scale)))
            }
            _ => None,
        });
        let mut points: Points = placed.filter(|(_, samples)| samples.count() > 1).collect();
        points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        (*peer, points)
    };
    let lines = table.peers.iter().map(points);
    lines.filter(|(_, points)| !points.is_empty()).collect()
}

/// One line a switch, the median with its spread.
fn line_panel(area: &Panel<'_>, title: &str, lines: &[(Peer, Points)], legend: bool) -> Drawn {
    let all = || lines.iter().flat_map(|(_, points)| points);
    let most_x = all().map(|(x, _)| *x).fold(1.0, f64::max);
    let most_y = all()
        .map(|(_, samples)| samples.quantile(0.9))
        .fold(0.0, f64::max);
    if most_y == 0.0 {
        return Ok(());
    }
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..most_x * 1.05, 0.0..most_y * 1.05)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_labels(8)
        .draw()?;
    for (peer, points) in lines {
        let color = color(*peer);
        let middle = points.iter().map(|(x, samples)| (*x, samples.median()));
        let line = LineSeries::new(middle, color.stroke_width(2));
        chart
            .draw_series(line)?
            .label(peer.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        let spread = points.iter().map(|(x, samples)| {
            let ends = [0.1, 0.9].map(|share| (*x, samples.quantile(share)));
            PathElement::new(ends.to_vec(), color.stroke_width(1))
        });
        chart.draw_series(spread)?;
        let dots = points
            .iter()
            .map(|(x, samples)| Circle::new((*x, samples.median()), 3, color.filled()));
        chart.draw_series(dots)?;
    }
    if !legend {
        return Ok(());
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    Ok(())
}

/// Groups of bars, one a switch.
fn bar_panel(
    area: &Panel<'_>,
    title: &str,
    table: &Table<Row, Peer>,
    groups: &[(Row, f64)],
    legend: bool,
) -> Drawn {
    let samples = |row: Row, scale: f64, peer: Peer| {
        let samples = table.get(peer, row).scaled(scale);
        (samples.count() > 1).then_some(samples)
    };
    // What rare outliers reach above the bars is cut off.
    let medians = groups.iter().flat_map(|(row, scale)| {
        let of = |peer: &Peer| samples(*row, *scale, *peer).map(|samples| samples.median());
        table.peers.iter().filter_map(of)
    });
    let most = medians.fold(0.0, f64::max) * 1.25;
    let width = table.peers.len() as f64 + 1.0;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..width * groups.len() as f64, 0.0..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .max_light_lines(0)
        .draw()?;
    for (place, peer) in table.peers.iter().enumerate() {
        let color = color(*peer);
        for (group, (row, scale)) in groups.iter().enumerate() {
            let Some(samples) = samples(*row, *scale, *peer) else {
                continue;
            };
            let left = group as f64 * width + place as f64 + 0.5;
            let bar = Rectangle::new(
                [(left, 0.0), (left + 0.8, samples.median())],
                color.filled(),
            );
            let series = chart.draw_series([bar])?;
            if group == 0 {
                series.label(peer.name()).legend(move |(x, y)| {
                    Rectangle::new([(x, y - 4), (x + 12, y + 4)], color.filled())
                });
            }
            let ends = [0.1, 0.9].map(|share| (left + 0.4, samples.quantile(share).min(most)));
            chart.draw_series([PathElement::new(ends.to_vec(), BLACK)])?;
        }
    }
    if !legend {
        return Ok(());
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    Ok(())
}

/// Ours in blue, the others apart from each other also without colours: dark, middle, light.
fn color(peer: Peer) -> RGBColor {
    match peer {
        Peer::ButterflyRules => RGBColor(0, 70, 170),
        Peer::ButterflyOpen => RGBColor(90, 165, 240),
        Peer::ButterflyAwake => RGBColor(170, 210, 250),
        Peer::Testpmd => RGBColor(60, 60, 60),
        Peer::TestpmdLarge => RGBColor(150, 150, 150),
        Peer::OvsNormal => RGBColor(230, 150, 0),
        Peer::OvsCtOne => RGBColor(215, 95, 60),
        Peer::OvsCt => RGBColor(160, 20, 40),
    }
}
