//! What clients may send and must not get away with: every field wrong in turn, then noise.

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use proptest::prelude::*;
use serde_json::{json, Value};

use super::tests::sample;
use super::*;
use crate::circuit::diagnose;

const POREP: ProofKind = ProofKind::PorepSealCommit;
const SNAP: ProofKind = ProofKind::SnapDealsUpdate;
const WINDOW: ProofKind = ProofKind::WindowPostPartition;
const WINNING: ProofKind = ProofKind::WinningPost;

fn error(raw: &RawRequest) -> RequestError {
    ProofRequest::parse(raw).expect_err("must be refused")
}

/// Declares a test: after `change`, a request of `kind` is refused for that field.
macro_rules! refuses {
    ($($name:ident: $kind:ident, $field:expr, $change:expr;)*) => { $(
        #[test]
        fn $name() {
            let mut raw = sample().request($kind);
            assert!(ProofRequest::parse(&raw).is_ok());
            let change: fn(&mut RawRequest) = $change;
            change(&mut raw);
            let error = error(&raw);
            assert_eq!(error.field, $field, "{error}");
        }
    )* };
}

refuses! {
    no_kind: POREP, "proof_kind", |raw| raw.proof_kind = 0;
    an_unknown_kind: POREP, "proof_kind", |raw| raw.proof_kind = 5;
    a_negative_kind: POREP, "proof_kind", |raw| raw.proof_kind = i32::MIN;
    an_unknown_priority: POREP, "priority", |raw| raw.priority = 5;
    an_endless_request_id: POREP, "request_id", |raw| raw.request_id = "x".repeat(513);

    porep_without_its_proof: POREP, "vanilla_proof", |raw| raw.vanilla_proof.clear();
    porep_with_proofs_of_others: POREP, "vanilla_proofs", |raw| raw.vanilla_proofs = vec![vec![1]];
    porep_that_is_no_json: POREP, "vanilla_proof", |raw| raw.vanilla_proof = b"{".to_vec();
    porep_of_another_size: POREP, "sector_size", |raw| raw.sector_size = 8 << 20;
    porep_registered_otherwise: POREP, "registered_proof", |raw| raw.registered_proof = 8;
    porep_registered_as_nothing: POREP, "registered_proof", |raw| raw.registered_proof = u64::MAX;
    porep_of_another_sector: POREP, "sector_number", |raw| raw.sector_number += 1;
    porep_of_another_miner: POREP, "vanilla_proof.replica_id", |raw| raw.miner_id += 1;
    porep_nested_endlessly: POREP, "vanilla_proof", |raw| {
        raw.vanilla_proof = [b"{\"a\":".repeat(1 << 20), b"1".to_vec()].concat();
    };

    porep_in_bad_base64: POREP, "vanilla_proof.Phase1Out", |raw| {
        envelope(raw, |envelope| envelope["Phase1Out"] = json!("*"));
    };
    porep_in_an_envelope_of_another_size: POREP, "vanilla_proof.SectorSize", |raw| {
        envelope(raw, |envelope| envelope["SectorSize"] = json!(4096));
    };
    porep_in_an_envelope_with_a_negative_sector: POREP, "vanilla_proof", |raw| {
        envelope(raw, |envelope| envelope["SectorNum"] = json!(-1));
    };
    porep_with_a_false_tag: POREP, "vanilla_proof.vanilla_proofs", |raw| inner(raw, |inner| {
        let proofs = inner["vanilla_proofs"]["StackedDrg2KiBV1"].take();
        inner["vanilla_proofs"] = json!({ "StackedDrg8MiBV1": proofs });
    });
    porep_without_a_seed: POREP, "vanilla_proof.Phase1Out", |raw| inner(raw, |inner| {
        inner.as_object_mut().unwrap().remove("seed");
    });
    porep_with_a_zero_seed: POREP, "vanilla_proof.seed", |raw| inner(raw, |inner| {
        inner["seed"] = json!(vec![0; 32]);
    });
    porep_with_a_zero_comm_r: POREP, "vanilla_proof.comm_r", |raw| inner(raw, |inner| {
        inner["comm_r"] = json!(vec![0; 32]);
    });
    porep_with_a_comm_d_beyond_the_field: POREP, "vanilla_proof.Phase1Out", |raw| inner(raw, |inner| {
        inner["comm_d"] = json!(vec![255; 32]);
    });
    porep_with_another_seed: POREP, "vanilla_proof.vanilla_proofs[0][0].comm_d_proofs.path",
        |raw| inner(raw, |inner| inner["seed"] = json!(vec![9; 32]));
    porep_without_partitions: POREP, "vanilla_proof.vanilla_proofs", |raw| inner(raw, |inner| {
        inner["vanilla_proofs"]["StackedDrg2KiBV1"] = json!([]);
    });
    porep_without_challenges: POREP, "vanilla_proof.vanilla_proofs[0]", |raw| inner(raw, |inner| {
        inner["vanilla_proofs"]["StackedDrg2KiBV1"] = json!([[]]);
    });
    porep_without_labels: POREP, "vanilla_proof.vanilla_proofs[0][1].labeling_proofs",
        |raw| challenge(raw, |challenge| challenge["labeling_proofs"] = json!([]));
    porep_without_a_parent: POREP, "vanilla_proof.vanilla_proofs[0][1].drg_parents",
        |raw| challenge(raw, |challenge| {
            pop(&mut challenge["replica_column_proofs"]["drg_parents"]);
        });
    porep_with_a_short_column: POREP, "vanilla_proof.vanilla_proofs[0][1].exp_parents.column.rows",
        |raw| challenge(raw, |challenge| {
            pop(&mut challenge["replica_column_proofs"]["exp_parents"][7]["column"]["rows"]);
        });
    porep_with_a_short_path: POREP, "vanilla_proof.vanilla_proofs[0][1].comm_r_last_proof.path",
        |raw| challenge(raw, |challenge| {
            pop(&mut challenge["comm_r_last_proof"]["data"]["Single"]["path"]["path"]);
        });
    porep_with_too_few_siblings: POREP, "vanilla_proof.vanilla_proofs[0][1].c_x.path[1]",
        |raw| challenge(raw, |challenge| {
            let path = &mut challenge["replica_column_proofs"]["c_x"]["inclusion_proof"];
            pop(&mut path["data"]["Single"]["path"]["path"][1]["hashes"]);
        });
    porep_with_an_index_beyond_the_arity: POREP, "vanilla_proof.vanilla_proofs[0][1].c_x.path[0]",
        |raw| challenge(raw, |challenge| {
            let path = &mut challenge["replica_column_proofs"]["c_x"]["inclusion_proof"];
            path["data"]["Single"]["path"]["path"][0]["index"] = json!(8);
        });

    post_without_proofs: WINNING, "vanilla_proofs", |raw| raw.vanilla_proofs.clear();
    post_with_a_proof_of_others: WINNING, "vanilla_proof", |raw| raw.vanilla_proof = vec![1];
    post_of_another_size: WINNING, "sector_size", |raw| raw.sector_size = 32 << 30;
    winning_registered_as_window: WINNING, "registered_proof", |raw| raw.registered_proof = 5;
    window_registered_as_winning: WINDOW, "registered_proof", |raw| raw.registered_proof = 0;
    post_registered_as_nothing: WINDOW, "registered_proof", |raw| raw.registered_proof = 15;
    post_of_a_larger_sector: WINDOW, "vanilla_proofs[0].inclusion_proofs[0].path",
        |raw| (raw.registered_proof, raw.sector_size) = (13, 32 << 30);
    post_without_randomness: WINDOW, "randomness", |raw| raw.randomness.clear();
    post_with_long_randomness: WINDOW, "randomness", |raw| raw.randomness.push(0);
    post_with_randomness_beyond_the_field: WINDOW, "randomness", |raw| raw.randomness[31] = 0xff;
    post_with_other_randomness: WINDOW, "vanilla_proofs[0].inclusion_proofs[0].path",
        |raw| raw.randomness[0] ^= 1;
    post_of_a_partition_no_deadline_has: WINDOW, "partition_index",
        |raw| raw.partition_index = 3000;
    window_of_too_many_sectors: WINDOW, "vanilla_proofs",
        |raw| raw.vanilla_proofs = vec![raw.vanilla_proofs[0].clone(); 3];
    winning_of_two_sectors: WINNING, "vanilla_proofs",
        |raw| raw.vanilla_proofs.push(raw.vanilla_proofs[0].clone());
    post_cut_short: WINDOW, "vanilla_proofs[0]", |raw| { raw.vanilla_proofs[0].pop(); };
    post_with_more_behind: WINDOW, "vanilla_proofs[0]", |raw| raw.vanilla_proofs[0].push(0);
    post_claiming_endless_sectors: WINDOW, "vanilla_proofs[0]",
        |raw| raw.vanilla_proofs[0][40..48].fill(0xff);
    post_with_a_comm_r_beyond_the_field: WINDOW, "vanilla_proofs[0]",
        |raw| raw.vanilla_proofs[0][39] = 0xff;
    winning_with_the_window_s_challenges: WINNING, "vanilla_proofs[0].inclusion_proofs",
        |raw| raw.vanilla_proofs = sample().request(WINDOW).vanilla_proofs;
    post_with_another_root: WINDOW, "vanilla_proofs[0].inclusion_proofs[0].root",
        |raw| raw.vanilla_proofs[0][40 + 8 + 8 + 4] ^= 1;

    snap_registered_as_nothing: SNAP, "registered_proof", |raw| raw.registered_proof = 5;
    snap_of_another_size: SNAP, "sector_size", |raw| raw.sector_size = 64 << 30;
    snap_of_a_larger_sector: SNAP, "vanilla_proofs",
        |raw| (raw.registered_proof, raw.sector_size) = (3, 0);
    snap_without_proofs: SNAP, "vanilla_proofs", |raw| raw.vanilla_proofs.clear();
    snap_of_two_partitions: SNAP, "vanilla_proofs",
        |raw| raw.vanilla_proofs.push(raw.vanilla_proofs[0].clone());
    snap_without_comm_r_old: SNAP, "comm_r_old", |raw| raw.comm_r_old.clear();
    snap_with_a_short_comm_r_new: SNAP, "comm_r_new", |raw| { raw.comm_r_new.pop(); };
    snap_with_a_zero_comm_d_new: SNAP, "comm_d_new", |raw| raw.comm_d_new.fill(0);
    snap_with_a_comm_d_new_beyond_the_field: SNAP, "comm_d_new", |raw| raw.comm_d_new.fill(0xff);
    snap_cut_short: SNAP, "vanilla_proofs[0]", |raw| { raw.vanilla_proofs[0].pop(); };
    snap_without_an_apex_leaf: SNAP, "vanilla_proofs[0].apex_leafs", |raw| {
        raw.vanilla_proofs[0][32] = 7;
        raw.vanilla_proofs[0].drain(40..72);
    };
}

#[test]
fn a_request_too_large_for_a_message_is_refused_unread() {
    let mut raw = sample().request(WINNING);
    raw.vanilla_proofs = vec![vec![0; (256 << 20) + 1]];
    assert_eq!(error(&raw).field, "vanilla_proofs");
}

#[test]
fn an_error_says_what_was_found_and_what_was_expected() {
    let mut raw = sample().request(WINDOW);
    raw.randomness.truncate(31);
    assert_eq!(error(&raw).to_string(), "randomness: expected 32 bytes, found 31");
}

#[test]
fn what_a_client_may_leave_out_is_taken_from_the_proof() {
    let mut raw = sample().request(POREP);
    let whole = ProofRequest::parse(&raw).unwrap();
    (raw.sector_size, raw.registered_proof, raw.sector_number, raw.miner_id) = (0, 0, 0, 0);
    let bare = ProofRequest::parse(&raw).unwrap();
    assert_eq!(bare.circuit_id(), whole.circuit_id());
    let inputs = |request: ProofRequest| request.partition(0).unwrap().inputs;
    assert_eq!(inputs(bare), inputs(whole));
}

#[test]
fn porep_is_accepted_without_its_envelope() {
    let mut raw = sample().request(POREP);
    raw.vanilla_proof = STANDARD.decode(outer(&raw)["Phase1Out"].as_str().unwrap()).unwrap();
    assert!(ProofRequest::parse(&raw).is_ok());
}

fn outer(raw: &RawRequest) -> Value {
    serde_json::from_slice(&raw.vanilla_proof).unwrap()
}

fn envelope(raw: &mut RawRequest, change: impl FnOnce(&mut Value)) {
    let mut envelope = outer(raw);
    change(&mut envelope);
    raw.vanilla_proof = serde_json::to_vec(&envelope).unwrap();
}

fn inner(raw: &mut RawRequest, change: impl FnOnce(&mut Value)) {
    envelope(raw, |envelope| {
        let text = STANDARD.decode(envelope["Phase1Out"].as_str().unwrap()).unwrap();
        let mut inner = serde_json::from_slice(&text).unwrap();
        change(&mut inner);
        envelope["Phase1Out"] = json!(STANDARD.encode(serde_json::to_vec(&inner).unwrap()));
    });
}

/// The second challenge of the only partition.
fn challenge(raw: &mut RawRequest, change: impl FnOnce(&mut Value)) {
    inner(raw, |inner| change(&mut inner["vanilla_proofs"]["StackedDrg2KiBV1"][0][1]));
}

fn pop(array: &mut Value) {
    array.as_array_mut().unwrap().pop().unwrap();
}

/// A way to spoil bytes; positions are taken modulo the length.
#[derive(Debug, Clone)]
enum Spoil {
    Flip(usize, u8),
    Cut(usize),
    Insert(usize, u8),
    Remove(usize, usize),
    /// Over eight bytes: where bincode may have a length or an index.
    Number(usize, u64),
}

fn spoil() -> impl Strategy<Value = Spoil> {
    let number = prop_oneof![0..20u64, any::<u64>(), Just(u64::MAX)];
    prop_oneof![
        4 => (any::<usize>(), 0..8u8).prop_map(|(at, bit)| Spoil::Flip(at, 1 << bit)),
        1 => any::<usize>().prop_map(Spoil::Cut),
        1 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Spoil::Insert(at, byte)),
        1 => (any::<usize>(), 1..64usize).prop_map(|(at, n)| Spoil::Remove(at, n)),
        4 => (any::<usize>(), number).prop_map(|(at, number)| Spoil::Number(at, number)),
    ]
}

fn apply(bytes: &mut Vec<u8>, spoil: &Spoil) {
    let len = bytes.len().max(1);
    match *spoil {
        Spoil::Flip(at, mask) => bytes.iter_mut().skip(at % len).take(1).for_each(|b| *b ^= mask),
        Spoil::Cut(at) => bytes.truncate(at % len),
        Spoil::Insert(at, byte) => bytes.insert(at % (bytes.len() + 1), byte),
        Spoil::Remove(at, n) => {
            let at = (at % len).min(bytes.len());
            bytes.drain(at..(at + n).min(bytes.len()));
        }
        Spoil::Number(at, number) => {
            let at = at % len;
            bytes.iter_mut().skip(at).zip(number.to_le_bytes()).for_each(|(b, new)| *b = new);
        }
    }
}

/// A way to spoil a JSON document: where a walk of choices leads, what to do there, and a number.
fn spoil_json() -> impl Strategy<Value = (Vec<usize>, u8, u64)> {
    (proptest::collection::vec(any::<usize>(), 1..16), 0..6u8, any::<u64>())
}

fn apply_json(value: &mut Value, walk: &[usize], what: u8, number: u64) {
    // A short walk ends at an array or an object, a long one at a number.
    if let [choice, rest @ ..] = walk {
        match value {
            Value::Array(items) if !items.is_empty() => {
                let at = choice % items.len();
                return apply_json(&mut items[at], rest, what, number);
            }
            Value::Object(fields) if !fields.is_empty() => {
                let at = choice % fields.len();
                let next = fields.values_mut().nth(at);
                return next.into_iter().for_each(|next| apply_json(next, rest, what, number));
            }
            _ => {}
        }
    }
    match (what, value) {
        (0, Value::Array(items)) => drop(items.pop()),
        (1, Value::Array(items)) => items.extend(items.first().cloned()),
        (2, Value::Array(items)) => items.clear(),
        (3, value) => *value = Value::Null,
        (4, value) => *value = json!(number),
        (_, value) => *value = json!(number % 256),
    }
}

/// Builds and, where that is quick, synthesises whatever was accepted.
fn survive(raw: &RawRequest) {
    let Ok(request) = ProofRequest::parse(raw) else { return };
    for index in 0..request.partitions() {
        if let Ok(partition) = request.partition(index) {
            if request.circuit_id().to_string() == "wpost-2k" {
                diagnose(partition.circuit);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_a_post_or_an_update_panic(
        kind in prop_oneof![Just(WINDOW), Just(WINNING), Just(SNAP)],
        spoils in proptest::collection::vec(spoil(), 1..4),
    ) {
        let mut raw = sample().request(kind);
        spoils.iter().for_each(|spoil| apply(&mut raw.vanilla_proofs[0], spoil));
        survive(&raw);
    }

    #[test]
    fn no_bytes_make_a_porep_panic(
        spoils in proptest::collection::vec(spoil(), 1..4),
        in_envelope in any::<bool>(),
    ) {
        let mut raw = sample().request(POREP);
        if !in_envelope {
            let text = outer(&raw)["Phase1Out"].as_str().map(|text| STANDARD.decode(text));
            raw.vanilla_proof = text.unwrap().unwrap();
        }
        spoils.iter().for_each(|spoil| apply(&mut raw.vanilla_proof, spoil));
        survive(&raw);
    }

    #[test]
    fn no_document_makes_a_porep_panic(spoils in proptest::collection::vec(spoil_json(), 1..3)) {
        let mut raw = sample().request(POREP);
        inner(&mut raw, |inner| {
            spoils.iter().for_each(|(walk, what, number)| apply_json(inner, walk, *what, *number));
        });
        survive(&raw);
    }

    #[test]
    fn no_fields_make_a_request_panic(
        kind in -1..6i32,
        size in prop_oneof![Just(0), Just(2048), Just(32 << 30), any::<u64>()],
        registered in prop_oneof![0..21u64, any::<u64>()],
        priority in -1..6i32,
        (sector, miner, partition) in (any::<u64>(), any::<u64>(), any::<u32>()),
        fields in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 4),
    ) {
        let proofs = sample().request(WINDOW).vanilla_proofs;
        let raw = RawRequest {
            proof_kind: kind,
            sector_size: size,
            registered_proof: registered,
            priority,
            vanilla_proofs: if kind == 1 { vec![] } else { proofs },
            vanilla_proof: if kind == 1 { fields[0].clone() } else { vec![] },
            sector_number: sector,
            miner_id: miner,
            randomness: fields[0].clone(),
            partition_index: partition,
            comm_r_old: fields[1].clone(),
            comm_r_new: fields[2].clone(),
            comm_d_new: fields[3].clone(),
            ..RawRequest::default()
        };
        survive(&raw);
    }
}
