use super::*;

fn explained(vars: &[(&str, &str)]) -> Result<Explained, SetpointError> {
    let owned = |&(name, value): &(&str, &str)| (format!("CUZK_GOV_{name}"), value.to_owned());
    let other = ("HOME".to_owned(), "/root".to_owned());
    Explained::from_vars(vars.iter().map(owned).chain([other]))
}

fn refusal(vars: &[(&str, &str)]) -> String {
    explained(vars).unwrap_err().to_string()
}

#[test]
fn nothing_set_is_the_balanced_profile() {
    let explained = explained(&[]).unwrap();
    assert_eq!(explained.setpoints, Setpoints::default());
    assert!(explained.rows.iter().all(|row| row.source == Source::Profile));
}

#[test]
fn values_are_read_with_their_units_and_stand_above_the_profile() {
    let set = explained(&[
        ("PROFILE", "aggressive"),
        ("TICK", "250ms"),
        ("LIMIT", "2GiB"),
        ("MARGIN_FLOOR", " 1.5% "),
        ("MARGIN_START", "0.25"),
        ("PRESSURE_HOLD", "12.5%"),
        ("TRUST_TICKS", "4"),
    ])
    .unwrap()
    .setpoints;
    let expected = Setpoints {
        tick: millis(250),
        limit: Some(2 << 30),
        margin_floor: 0.015,
        margin_start: 0.25,
        pressure_hold: 12.5,
        trust_ticks: 4,
        ..Setpoints::of(Profile::Aggressive)
    };
    assert_eq!(set, expected);
}

#[test]
fn a_bad_value_is_named_with_what_was_expected() {
    let cases = [
        (
            "TICK",
            "5x",
            r#"CUZK_GOV_TICK="5x" cannot be read: expected a time such as 250ms, 3s or 2min"#,
        ),
        (
            "LIMIT",
            "much",
            r#"CUZK_GOV_LIMIT="much" cannot be read: expected at least 64MiB, such as 2GiB, or none"#,
        ),
        (
            "CLIMB_GAIN",
            "NaN",
            r#"CUZK_GOV_CLIMB_GAIN="NaN" cannot be read: expected a share such as 15% or 0.15"#,
        ),
        (
            "PROFILE",
            "bold",
            r#"CUZK_GOV_PROFILE="bold" cannot be read: expected conservative, balanced or aggressive"#,
        ),
        (
            "TRUST_TICKS",
            "-1",
            r#"CUZK_GOV_TRUST_TICKS="-1" cannot be read: expected a whole number such as 3"#,
        ),
        ("TICK", "1ms", "CUZK_GOV_TICK=1ms is out of range: expected 10ms to 1m"),
        ("MARGIN_FLOOR", "90%", "CUZK_GOV_MARGIN_FLOOR=90% is out of range: expected 0% to 50%"),
        ("TIKC", "1s", "CUZK_GOV_TIKC is not known; `cuzk governor explain` lists those that are"),
    ];
    for (name, value, message) in cases {
        assert_eq!(refusal(&[(name, value)]), message);
    }
}

#[test]
fn values_that_contradict_each_other_are_both_named() {
    let cases = [
        (("REACTION", "1s"), ("TICK", "2s")),
        (("WATCHDOG", "1s"), ("TICK", "2s")),
        (("MARGIN_START", "1%"), ("MARGIN_FLOOR", "10%")),
        (("GROW_COOLDOWN", "1s"), ("RETREAT_COOLDOWN", "5s")),
        (("TRIGGER_STALL", "2s"), ("TRIGGER_WINDOW", "2s")),
        (("CLIMB_WINDOW", "9s"), ("TICK", "1s")),
    ];
    for ((one, value), (other, other_value)) in cases {
        let message = refusal(&[(one, value), (other, other_value)]);
        let begin = format!("CUZK_GOV_{one}={value} contradicts CUZK_GOV_{other}={other_value}");
        assert!(message.starts_with(&begin), "{message}");
    }
}

#[test]
fn every_profile_passes_its_own_checks_when_written_out_and_read_back() {
    for profile in [Profile::Conservative, Profile::Balanced, Profile::Aggressive] {
        let set = Setpoints::of(profile);
        let written = set.rows().into_iter().map(|row| (row.name.to_owned(), row.value));
        assert_eq!(Explained::from_vars(written).unwrap().setpoints, set);
    }
}

#[test]
fn the_explanation_states_value_source_and_meaning_of_every_knob() {
    let explained = explained(&[("TICK", "2s")]).unwrap();
    let json = explained.json();
    let row = &json["setpoints"][1];
    assert_eq!(row["name"], "CUZK_GOV_TICK");
    assert_eq!((&row["value"], &row["source"]), (&"2s".into(), &"environment".into()));
    assert_eq!(row["meaning"], "between two samples");
    assert!(explained.rows.iter().all(|row| !row.value.is_empty() && !row.meaning.is_empty()));
}
