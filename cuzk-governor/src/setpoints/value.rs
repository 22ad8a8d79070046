//! How values are written: `250ms`, `2GiB`, `15%`.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytesize::ByteSize;

use super::SetpointError;

/// A type that a knob may have.
pub(super) trait Value: Sized + PartialOrd {
    const EXPECTED: &'static str;
    fn parse(text: &str) -> Option<Self>;
    /// As [`Value::parse`] reads it.
    fn show(&self) -> String;
}

/// Reads a variable's value and holds it against its range.
pub(super) fn read<T: Value>(
    variable: &str,
    text: &str,
    range: RangeInclusive<T>,
) -> Result<T, SetpointError> {
    let value = T::parse(text).ok_or_else(|| SetpointError::Unreadable {
        variable: variable.to_owned(),
        value: text.to_owned(),
        expected: T::EXPECTED,
    })?;
    if range.contains(&value) {
        return Ok(value);
    }
    Err(SetpointError::OutOfRange {
        variable: variable.to_owned(),
        value: text.to_owned(),
        least: range.start().show(),
        most: range.end().show(),
    })
}

impl Value for Duration {
    const EXPECTED: &'static str = "a time such as 250ms, 3s or 2min";

    fn parse(text: &str) -> Option<Self> {
        humantime::parse_duration(text).ok()
    }

    fn show(&self) -> String {
        humantime::format_duration(*self).to_string()
    }
}

/// A share of something.
impl Value for f64 {
    const EXPECTED: &'static str = "a share such as 15% or 0.15";

    fn parse(text: &str) -> Option<Self> {
        // Shifting the point in the text, so that 99.9% is exactly 0.999.
        let number = match text.strip_suffix('%') {
            Some(per_cent) => format!("{}e-2", per_cent.trim()).parse().ok(),
            None => text.parse().ok(),
        };
        number.filter(|share: &f64| share.is_finite())
    }

    fn show(&self) -> String {
        format!("{}%", (self * 1e8).round() / 1e6)
    }
}

/// Per cent.
impl Value for f32 {
    const EXPECTED: &'static str = "per cent, such as 10%";

    fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%').unwrap_or(text);
        number.trim().parse().ok().filter(|per_cent: &f32| per_cent.is_finite())
    }

    fn show(&self) -> String {
        format!("{self}%")
    }
}

impl Value for u32 {
    const EXPECTED: &'static str = "a whole number such as 3";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// The least limit that anything can be governed in.
const LEAST_LIMIT: u64 = 64 << 20;

/// Bytes, or no limit.
impl Value for Option<u64> {
    const EXPECTED: &'static str = "at least 64MiB, such as 2GiB, or none";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "none" => Some(None),
            _ => {
                let bytes = text.parse::<ByteSize>().ok()?.as_u64();
                (bytes >= LEAST_LIMIT).then_some(Some(bytes))
            }
        }
    }

    fn show(&self) -> String {
        self.map_or("none".to_owned(), |bytes| {
            let exact = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
            let unit = exact.iter().find(|(shift, _)| bytes > 0 && bytes % (1 << shift) == 0);
            unit.map_or(bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
        })
    }
}
