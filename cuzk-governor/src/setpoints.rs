//! Every knob of the governor, typed, from `CUZK_GOV_*`.
//!
//! One table states name, type, range, the three profiles' values and the meaning; the struct,
//! the reading, the checks and `cuzk governor explain` all come from it. A bad value ends the
//! start with an error that names it: a governor that guesses is worse than none.

use std::time::Duration;

use serde::Serialize;

use value::Value;

#[cfg(test)]
mod tests;
mod value;

/// What every variable begins with.
const PREFIX: &str = "CUZK_GOV_";
/// Chooses the [`Profile`].
const PROFILE: &str = "CUZK_GOV_PROFILE";

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

macro_rules! knobs {
    ($($name:ident: $type:ty, $variable:literal, $range:expr,
       [$conservative:expr, $balanced:expr, $aggressive:expr], $meaning:literal;)*) => {
        /// The knobs. [`Setpoints::default`] is the `balanced` profile.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Setpoints {
            $(#[doc = concat!($meaning, " (`", $variable, "`)")] pub $name: $type,)*
        }

        impl Setpoints {
            /// A profile's values.
            pub fn of(profile: Profile) -> Self {
                match profile {
                    Profile::Conservative => Self { $($name: $conservative,)* },
                    Profile::Balanced => Self { $($name: $balanced,)* },
                    Profile::Aggressive => Self { $($name: $aggressive,)* },
                }
            }

            /// Sets the knob of this variable; whether there is one.
            fn set(&mut self, variable: &str, text: &str) -> Result<bool, SetpointError> {
                match variable {
                    $($variable => self.$name = value::read(variable, text, $range)?,)*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            fn rows(&self) -> Vec<Row> {
                vec![$(Row {
                    name: $variable,
                    value: self.$name.show(),
                    source: Source::Profile,
                    meaning: $meaning,
                },)*]
            }
        }
    };
}

knobs! {
    tick: Duration, "CUZK_GOV_TICK", millis(10)..=seconds(60),
        [seconds(1), seconds(1), seconds(1)],
        "between two samples";
    reaction: Duration, "CUZK_GOV_REACTION", millis(10)..=seconds(600),
        [seconds(5), seconds(3), seconds(2)],
        "from a decision until its memory is back; an emergency is a limit nearer than this";
    trust_ticks: u32, "CUZK_GOV_TRUST_TICKS", 1..=16,
        [5, 4, 2],
        "good news is believed after so many samples, bad news at once";
    margin_quantile: f64, "CUZK_GOV_MARGIN_QUANTILE", 0.5..=1.0,
        [1.0, 0.999, 0.99],
        "share of the forecast errors that the learned margin covers";
    margin_floor: f64, "CUZK_GOV_MARGIN_FLOOR", 0.0..=0.5,
        [0.04, 0.02, 0.01],
        "the margin is never below this share of the limit";
    margin_start: f64, "CUZK_GOV_MARGIN_START", 0.0..=0.5,
        [0.10, 0.05, 0.03],
        "the margin before anything was learned, as a share of the limit";
    warmup_ticks: u32, "CUZK_GOV_WARMUP_TICKS", 1..=100_000,
        [300, 60, 30],
        "samples until the learned margin stands alone";
    limit: Option<u64>, "CUZK_GOV_LIMIT", None..=Some(u64::MAX - 1),
        [None, None, None],
        "an own limit on this process's memory, beside the kernel's";
    host_reserve: f64, "CUZK_GOV_HOST_RESERVE", 0.0..=0.9,
        [0.05, 0.02, 0.01],
        "share of the machine's memory left to others";
    grow_above: f64, "CUZK_GOV_GROW_ABOVE", 0.0..=0.5,
        [0.04, 0.02, 0.01],
        "share of the limit that must stay spare for anything to grow";
    retreat_cooldown: Duration, "CUZK_GOV_RETREAT_COOLDOWN", millis(0)..=seconds(60),
        [millis(500), millis(500), seconds(1)],
        "between two steps down outside an emergency";
    grow_cooldown: Duration, "CUZK_GOV_GROW_COOLDOWN", millis(10)..=seconds(3600),
        [seconds(30), seconds(10), seconds(5)],
        "between two steps up, and from the last shortage to the first of them";
    max_concurrency: u32, "CUZK_GOV_MAX_CONCURRENCY", 1..=4096,
        [64, 64, 64],
        "the most partitions at once";
    climb_window: Duration, "CUZK_GOV_CLIMB_WINDOW", seconds(1)..=seconds(86_400),
        [seconds(120), seconds(60), seconds(60)],
        "throughput is measured for so long at least before concurrency moves for its sake";
    climb_gain: f64, "CUZK_GOV_CLIMB_GAIN", 0.0..=1.0,
        [0.04, 0.02, 0.01],
        "one partition more at once must raise throughput by this share, or is taken back";
    pressure_hold: f32, "CUZK_GOV_PRESSURE_HOLD", 0.0..=100.0,
        [5.0, 10.0, 20.0],
        "part of the time stalled for memory above which nothing grows";
    trigger_stall: Duration, "CUZK_GOV_TRIGGER_STALL", millis(1)..=seconds(10),
        [millis(100), millis(150), millis(200)],
        "a stall for memory of so long within the window wakes the governor early";
    trigger_window: Duration, "CUZK_GOV_TRIGGER_WINDOW", millis(500)..=seconds(10),
        [seconds(1), seconds(1), seconds(1)],
        "the window of the trigger; the kernel may grant only whole two seconds";
    refuse_after: Duration, "CUZK_GOV_REFUSE_AFTER", seconds(1)..=seconds(86_400),
        [seconds(60), seconds(30), seconds(30)],
        "what cannot fit is refused once it could not for so long";
    watchdog: Duration, "CUZK_GOV_WATCHDOG", millis(10)..=seconds(3600),
        [seconds(5), seconds(5), seconds(5)],
        "work that has not taken an order for so long is reported as stuck";
}

/// How much is risked for throughput.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Room before throughput.
    Conservative,
    /// The default.
    #[default]
    Balanced,
    /// Throughput before room.
    Aggressive,
}

impl Profile {
    fn named(name: &str) -> Option<Self> {
        match name {
            "conservative" => Some(Self::Conservative),
            "balanced" => Some(Self::Balanced),
            "aggressive" => Some(Self::Aggressive),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Conservative => "conservative",
            Self::Balanced => "balanced",
            Self::Aggressive => "aggressive",
        }
    }
}

impl Default for Setpoints {
    fn default() -> Self {
        Self::of(Profile::Balanced)
    }
}

/// What is wrong with a variable, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetpointError {
    /// Not a value of its type.
    #[error("{variable}={value:?} cannot be read: expected {expected}")]
    Unreadable {
        /// The variable.
        variable: String,
        /// What it says.
        value: String,
        /// What it should say.
        expected: &'static str,
    },
    /// Of its type, but not sensible.
    #[error("{variable}={value} is out of range: expected {least} to {most}")]
    OutOfRange {
        /// The variable.
        variable: String,
        /// What it says.
        value: String,
        /// The least.
        least: String,
        /// The most.
        most: String,
    },
    /// Sensible alone, but not beside another.
    #[error("{variable}={value} contradicts {other}={other_value}: expected {rule}")]
    Contradiction {
        /// One variable.
        variable: &'static str,
        /// What it is.
        value: String,
        /// The other.
        other: &'static str,
        /// What that is.
        other_value: String,
        /// How they must relate.
        rule: &'static str,
    },
    /// No such knob.
    #[error("{variable} is not known; `cuzk governor explain` lists those that are")]
    Unknown {
        /// The variable.
        variable: String,
    },
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The profile.
    Profile,
    /// The variable itself.
    Environment,
}

impl Source {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Profile => "profile",
            Self::Environment => "environment",
        }
    }
}

/// A line of the explanation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The variable.
    pub name: &'static str,
    /// Its value, as it could be written.
    pub value: String,
    /// Where that comes from.
    pub source: Source,
    /// What it does.
    pub meaning: &'static str,
}

/// The knobs in force, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// The knobs.
    pub setpoints: Setpoints,
    /// A row a variable, the profile first.
    pub rows: Vec<Row>,
}

impl Explained {
    /// From this process's environment.
    pub fn from_env() -> Result<Self, SetpointError> {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self::from_vars(std::env::vars_os().map(|(name, value)| (text(name), text(value))))
    }

    /// From these variables; those of others are ignored.
    pub fn from_vars(
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, SetpointError> {
        let ours: Vec<_> = vars.into_iter().filter(|(name, _)| name.starts_with(PREFIX)).collect();
        let chosen = ours.iter().find(|(name, _)| name == PROFILE);
        let profile = chosen.map(|(_, value)| profile(value)).transpose()?.unwrap_or_default();
        let mut setpoints = Setpoints::of(profile);
        for (variable, value) in ours.iter().filter(|(name, _)| name != PROFILE) {
            if !setpoints.set(variable, value.trim())? {
                return Err(SetpointError::Unknown { variable: variable.clone() });
            }
        }
        setpoints.agree()?;
        let mut rows = vec![Row {
            name: PROFILE,
            value: profile.name().to_owned(),
            source: Source::Profile,
            meaning: "how much is risked for throughput: conservative, balanced or aggressive",
        }];
        rows.extend(setpoints.rows());
        for row in &mut rows {
            if ours.iter().any(|(name, _)| name == row.name) {
                row.source = Source::Environment;
            }
        }
        Ok(Self { setpoints, rows })
    }

    /// The rows as JSON for programs.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({ "setpoints": self.rows })
    }
}

fn profile(text: &str) -> Result<Profile, SetpointError> {
    Profile::named(text.trim()).ok_or_else(|| SetpointError::Unreadable {
        variable: PROFILE.to_owned(),
        value: text.to_owned(),
        expected: "conservative, balanced or aggressive",
    })
}

/// How two knobs must relate, by their variables.
type Rule = (fn(&Setpoints) -> bool, &'static str, &'static str, &'static str);

const RULES: [Rule; 6] = [
    (|s| s.reaction >= s.tick, "REACTION", "TICK", "a reaction of at least one tick"),
    (|s| s.watchdog >= s.tick, "WATCHDOG", "TICK", "a watchdog of at least one tick"),
    (
        |s| s.margin_start >= s.margin_floor,
        "MARGIN_START",
        "MARGIN_FLOOR",
        "a start at or above the floor",
    ),
    (
        |s| s.grow_cooldown >= s.retreat_cooldown,
        "GROW_COOLDOWN",
        "RETREAT_COOLDOWN",
        "growth no faster than the retreat",
    ),
    (
        |s| s.trigger_stall < s.trigger_window,
        "TRIGGER_STALL",
        "TRIGGER_WINDOW",
        "a stall shorter than its window",
    ),
    (|s| s.climb_window >= 10 * s.tick, "CLIMB_WINDOW", "TICK", "a window of at least ten ticks"),
];

impl Setpoints {
    /// Ticks that pass until a decision has given memory back, at least one.
    pub(crate) fn reaction_ticks(&self) -> usize {
        (self.reaction.as_secs_f64() / self.tick.as_secs_f64()).ceil().max(1.0) as usize
    }

    /// Checks the knobs against each other.
    fn agree(&self) -> Result<(), SetpointError> {
        let Some((_, one, other, rule)) = RULES.iter().find(|(holds, ..)| !holds(self)) else {
            return Ok(());
        };
        let rows = self.rows();
        let find = |short: &str| rows.iter().find(|row| row.name[PREFIX.len()..] == *short);
        let named = |short| find(short).map_or(("", String::new()), |r| (r.name, r.value.clone()));
        let ((variable, value), (other, other_value)) = (named(one), named(other));
        Err(SetpointError::Contradiction { variable, value, other, other_value, rule })
    }
}
