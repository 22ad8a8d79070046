//! The table as an SVG: throughput over the limit, a line a policy, a cross where it was killed.

use std::io::Write;
use std::path::Path;

use anyhow::{anyhow, Context, Result};
use plotters::prelude::*;

use crate::policy::{Policy, Row};

/// Draws all workloads that were measured under several policies; the file is written whole or not
/// at all.
pub fn draw(rows: &[Row], path: &Path) -> Result<()> {
    let mut names: Vec<_> =
        rows.iter().filter(|row| row.share_of_oracle.is_some()).map(|row| row.workload).collect();
    names.dedup();
    if names.is_empty() {
        return Ok(());
    }
    let mut svg = String::new();
    picture(rows, &names, &mut svg).map_err(|why| anyhow!("cannot draw: {why}"))?;
    let folder = path.parent().context("a file lies in a folder")?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(svg.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn picture(rows: &[Row], names: &[&str], svg: &mut String) -> Drawn {
    let height = 420 * names.len() as u32;
    let root = SVGBackend::with_string(svg, (900, height)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, name) in root.split_evenly((names.len(), 1)).iter().zip(names) {
        let rows: Vec<_> = rows.iter().filter(|row| row.workload == *name).collect();
        panel(&rows, name, area)?;
    }
    root.present()?;
    Ok(())
}

/// The policies' names and colours.
const LINES: [(Policy, &str, RGBColor); 5] = [
    (Policy::Governed, "governed", RGBColor(0, 130, 70)),
    (Policy::Oracle, "oracle", RGBColor(120, 120, 120)),
    (Policy::Static, "static budget", RGBColor(230, 140, 0)),
    (Policy::Retry, "static, a tenth less after a kill", RGBColor(150, 80, 200)),
    (Policy::Ungoverned, "ungoverned", BLUE),
];

fn panel(
    rows: &[&Row],
    name: &str,
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Drawn {
    let limit = |row: &Row| (row.limit >> 20) as f64;
    let right = rows.iter().map(|row| limit(row)).fold(0.0, f64::max) * 1.05;
    let top = rows.iter().map(|row| row.proofs_per_hour).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{name}: proofs an hour"), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart.configure_mesh().x_desc("memory limit, MiB").light_line_style(WHITE).draw()?;
    for (policy, label, colour) in LINES {
        let of: Vec<_> = rows.iter().filter(|row| row.policy == policy).collect();
        let point = |row: &Row| (limit(row), row.proofs_per_hour);
        let stroke = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(of.iter().map(|row| point(row)), stroke))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], stroke));
        chart.draw_series(of.iter().map(|row| Circle::new(point(row), 3, colour.filled())))?;
        let killed = of.iter().filter(|row| row.kills > 0);
        chart.draw_series(killed.map(|row| Cross::new(point(row), 6, RED.stroke_width(2))))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}
