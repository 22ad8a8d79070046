//! A run as an SVG: usage against limit and ledger, concurrency below it, and a mark for every action.

use plotters::prelude::*;

use crate::policy::Action;
use crate::sim::run::{Observer, Row};

/// Collects the rows of a run.
#[derive(Debug, Default)]
pub struct Recording {
    /// One a second.
    pub rows: Vec<Row>,
}

impl Observer for Recording {
    fn row(&mut self, row: Row) {
        self.rows.push(row);
    }
}

/// The plot could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the plot: {0}")]
pub struct PlotError(String);

/// Draws a recording; the text is a whole SVG file.
pub fn svg(recording: &Recording, title: &str) -> Result<String, PlotError> {
    let mut svg = String::new();
    picture(&recording.rows, title, &mut svg).map_err(|why| PlotError(why.to_string()))?;
    Ok(svg)
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn picture(rows: &[Row], title: &str, svg: &mut String) -> Drawn {
    let root = SVGBackend::with_string(svg, (1200, 800)).into_drawing_area();
    root.fill(&WHITE)?;
    let (above, below) = root.split_vertically(540);
    let end = rows.last().map_or(1.0, |row| row.at.as_secs_f64()).max(1.0);
    memory(rows, title, end, &above)?;
    partitions(rows, end, &below)?;
    root.present()?;
    Ok(())
}

/// A name, a colour, and what is drawn.
type Line<T> = (&'static str, RGBColor, fn(&Row) -> T);

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

fn memory(
    rows: &[Row],
    title: &str,
    end: f64,
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Drawn {
    let top = rows.iter().map(|row| gib(row.limit.max(row.usage))).fold(1.0, f64::max) * 1.08;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart.configure_mesh().x_desc("seconds").y_desc("GiB").light_line_style(WHITE).draw()?;
    let line =
        |value: fn(&Row) -> u64| rows.iter().map(move |r| (r.at.as_secs_f64(), gib(value(r))));
    let lines: [Line<u64>; 5] = [
        ("limit", RED, |r| r.limit),
        ("usage with page cache", RGBColor(150, 190, 230), |r| r.usage),
        ("usage that cannot be reclaimed", BLUE, |r| r.usage - r.reclaimable),
        ("ledger's total", RGBColor(230, 140, 0), |r| r.ledger.total),
        ("reserved", RGBColor(0, 130, 70), |r| r.ledger.reserved),
    ];
    for (name, colour, value) in lines {
        let stroke = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(line(value), stroke))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], stroke));
    }
    for (name, colour, shown) in MARKS {
        let at = rows.iter().filter(|r| r.actions.iter().any(shown));
        let marks = at.map(|r| {
            Circle::new((r.at.as_secs_f64(), gib(r.usage - r.reclaimable)), 4, colour.filled())
        });
        chart
            .draw_series(marks)?
            .label(name)
            .legend(move |(x, y)| Circle::new((x + 9, y), 4, colour.filled()));
    }
    let position = SeriesLabelPosition::LowerRight;
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

/// The actions that are marked, and how.
type Mark = (&'static str, RGBColor, fn(&Action) -> bool);
const MARKS: [Mark; 4] = [
    ("gives idle memory back", RGBColor(120, 120, 120), |a| {
        matches!(
            a,
            Action::FreeIdleChunks(_)
                | Action::PurgeAllocator
                | Action::DropFileCache(_)
                | Action::EvictCircuits(_)
        )
    }),
    ("pins SRS", RGBColor(150, 80, 200), |a| matches!(a, Action::PinSrs(_))),
    ("unpins SRS", RGBColor(230, 0, 180), |a| matches!(a, Action::UnpinSrs(_))),
    ("sheds or refuses", BLACK, |a| matches!(a, Action::Shed(_) | Action::Refuse { .. })),
];

fn partitions(
    rows: &[Row],
    end: f64,
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Drawn {
    let top = rows.iter().map(|row| row.running.max(row.concurrency.min(64))).max().unwrap_or(1);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..end, 0.0..f64::from(top) * 1.15 + 1.0)?;
    chart.configure_mesh().x_desc("seconds").y_desc("partitions").light_line_style(WHITE).draw()?;
    let lines: [Line<u32>; 2] = [
        ("allowed at once", RGBColor(230, 140, 0), |r| r.concurrency),
        ("running", BLUE, |r| r.running),
    ];
    for (name, colour, value) in lines {
        let stroke = colour.stroke_width(2);
        let points = rows.iter().map(|r| (r.at.as_secs_f64(), f64::from(value(r).min(top))));
        chart
            .draw_series(LineSeries::new(points, stroke))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], stroke));
    }
    let kills = rows.windows(2).filter(|w| w[1].kills > w[0].kills);
    let crosses =
        kills.map(|w| Cross::new((w[1].at.as_secs_f64(), f64::from(top)), 7, RED.stroke_width(3)));
    chart
        .draw_series(crosses)?
        .label("killed")
        .legend(|(x, y)| Cross::new((x + 9, y), 5, RED.stroke_width(3)));
    let position = SeriesLabelPosition::LowerRight;
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}
