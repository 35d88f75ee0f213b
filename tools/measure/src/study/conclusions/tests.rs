use super::*;
use crate::study::Grid;

/// Returns rows of the quick grid in which every conclusion holds.
fn like_the_paper() -> BTreeMap<Cell, Outcome> {
    Grid::Quick.cells(Device::UdpLoopback).into_iter().map(|cell| (cell, Ok(as_expected(&cell)))).collect()
}

fn as_expected(cell: &Cell) -> Measured {
    let size = cell.size as f64;
    let mut measured = Measured { iterations: 1000, elapsed_s: 0.1, ..Measured::default() };
    let wire_us = 2.0 + size / 4000.0;
    let factor = match (cell.test, cell.carrier) {
        (Test::Ping, Carrier::Read) => 2.0,
        (Test::Ping, Carrier::Tcp) => 3.0,
        (Test::Ping, Carrier::Write) => 0.95,
        (Test::Blast, Carrier::Tcp) => 1.5,
        (_, Carrier::Limit) => 0.9,
        _ => 1.0,
    };
    let ways = if cell.inline { 0.9 } else { 1.0 } * if cell.events { 1.5 } else { 1.0 };
    measured.one_way_us = wire_us * factor * ways;
    measured.percentiles_us = [None, Some(measured.one_way_us), None, None];
    let posting = if cell.lists { 1.2 } else { 1.0 } * if cell.periodic { 1.1 } else { 1.0 };
    let inline = if cell.inline { 1.1 } else { 1.0 };
    let enough = if cell.size >= MIB { 4 } else { 32 };
    let is_other = matches!(cell.carrier, Carrier::Limit | Carrier::Tcp);
    let buffers = if is_other { enough } else { cell.buffers };
    let parallel = (buffers * cell.workers).min(enough) as f64 / enough as f64;
    // With few buffers, the wire is idle most of the time.
    measured.gigabits_per_s = 30.0 * (size / (size + 1000.0)) * parallel * posting * inline / factor;
    measured.messages_per_s = measured.gigabits_per_s * 1e9 / 8.0 / size.max(1.0);
    let cpu = if cell.events { 40.0 } else { 100.0 };
    let per_block = if cell.workers > 1 && cell.size < 65_536 { 5.0 } else { 1.0 };
    (measured.client_cpu, measured.server_cpu) = (Some(cpu), Some(cpu * per_block));
    measured
}

fn verdict(id: &str, rows: &BTreeMap<Cell, Outcome>) -> (Verdict, String) {
    let conclusion = CONCLUSIONS.iter().find(|conclusion| conclusion.id == id).expect(id);
    let judgement = conclusion.judge(rows, Device::UdpLoopback);
    (judgement.verdict, judgement.numbers)
}

#[test]
fn every_conclusion_holds_for_rows_like_those_of_the_paper() {
    let rows = like_the_paper();
    for conclusion in &CONCLUSIONS {
        let (verdict, numbers) = verdict(conclusion.id, &rows);
        assert!(verdict == Verdict::Holds && !numbers.is_empty(), "{}: {verdict:?} {numbers}", conclusion.id);
    }
}

#[test]
fn no_conclusion_is_judged_without_rows() {
    let mut rows = BTreeMap::new();
    for conclusion in &CONCLUSIONS {
        assert_eq!(verdict(conclusion.id, &rows).0, Verdict::NotMeasured, "{}", conclusion.id);
    }
    // Cells that failed and cells of other devices do not count.
    rows.extend(like_the_paper().into_keys().map(|cell| (cell, Err("too slow".into()))));
    rows.extend(like_the_paper().into_iter().map(|(cell, row)| (Cell { device: Device::Raw, ..cell }, row)));
    for conclusion in &CONCLUSIONS {
        assert_eq!(verdict(conclusion.id, &rows).0, Verdict::NotMeasured, "{}", conclusion.id);
    }
}

/// A change of the rows after which a conclusion does not hold.
type Change = fn(&Cell, &mut Measured);

#[test]
fn each_conclusion_can_fail() {
    let changes: [(&str, Change); 18] = [
        ("inline-latency", |cell, row| {
            if cell.inline {
                row.percentiles_us[1] = row.percentiles_us[1].map(|us| us / 0.8);
            }
        }),
        ("inline-throughput", |cell, row| {
            if cell.inline {
                row.messages_per_s /= 1.2;
            }
        }),
        ("polling-latency", |cell, row| {
            if cell.events {
                row.percentiles_us[1] = row.percentiles_us[1].map(|us| us / 2.0);
            }
        }),
        ("polling-cost", |_, row| row.client_cpu = Some(50.0)),
        ("write-like-send", |cell, row| {
            if cell.carrier == Carrier::Write {
                row.percentiles_us[1] = row.percentiles_us[1].map(|us| us * 2.0);
            }
        }),
        ("read-slower", |cell, row| {
            if cell.carrier == Carrier::Read {
                row.one_way_us /= 2.0;
            }
        }),
        ("latency-flat", |cell, row| row.percentiles_us[1] = Some(cell.size as f64)),
        ("operations-alike", |cell, row| {
            if cell.carrier == Carrier::Read {
                row.gigabits_per_s /= 2.0;
            }
        }),
        ("near-link-rate", |cell, row| {
            if cell.carrier != Carrier::Limit {
                row.gigabits_per_s /= 2.0;
            }
        }),
        ("buffers-help", |cell, row| {
            if cell.size == 64 {
                row.gigabits_per_s = 1.0;
            }
        }),
        ("buffers-enough", |cell, row| {
            if cell.buffers == 128 {
                row.gigabits_per_s *= 2.0;
            }
        }),
        ("few-buffers-large", |cell, row| {
            if cell.buffers == 4 {
                row.gigabits_per_s /= 2.0;
            }
        }),
        ("lists-help", |cell, row| {
            if !cell.lists {
                row.messages_per_s *= 1.2;
            }
        }),
        ("periodic-signals", |cell, row| {
            if cell.periodic {
                row.messages_per_s /= 1.2;
            }
        }),
        ("events-large", |cell, row| {
            if cell.events {
                row.client_cpu = Some(300.0);
            }
        }),
        ("tcp-latency", |cell, row| {
            if cell.carrier == Carrier::Tcp {
                row.percentiles_us[1] = Some(0.1);
            }
        }),
        ("tcp-throughput", |cell, row| {
            if cell.carrier == Carrier::Tcp {
                row.gigabits_per_s *= 10.0;
            }
        }),
        ("workers", |cell, row| {
            if cell.workers > 1 {
                row.gigabits_per_s /= 100.0;
            }
        }),
    ];
    assert_eq!(changes.len(), CONCLUSIONS.len());
    for (id, change) in changes {
        let mut rows = like_the_paper();
        for (cell, row) in &mut rows {
            if let Ok(measured) = row {
                change(cell, measured);
            }
        }
        let (verdict, numbers) = verdict(id, &rows);
        assert_eq!(verdict, Verdict::DoesNotHold, "{id}: {numbers}");
    }
}

#[test]
fn every_conclusion_names_a_figure_of_the_quick_grid() {
    let names: Vec<String> =
        crate::study::figures(&like_the_paper()).into_iter().map(|figure| figure.name).collect();
    for conclusion in &CONCLUSIONS {
        assert!(
            names.iter().any(|name| name == conclusion.figure),
            "{}: {}",
            conclusion.id,
            conclusion.figure
        );
    }
    let ids: std::collections::BTreeSet<&str> = CONCLUSIONS.iter().map(|conclusion| conclusion.id).collect();
    assert_eq!(ids.len(), CONCLUSIONS.len());
}
