use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use umiak_core::facts::{Fact, NodeEnd, Record, SkipReason};
use umiak_core::model::{StepName, Timestamp};
use umiak_core::status::Status;

use super::*;
use crate::history::{Home, Life, RunId, life};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/journals")
}

fn run() -> (tempfile::TempDir, RunDir) {
    let directory = tempfile::tempdir().unwrap();
    let run = RunDir::create(&Home::at(directory.path())).unwrap();
    (directory, run)
}

fn notice(text: &str) -> Fact {
    Fact::Noticed { code: "L0023".to_owned(), message: text.to_owned() }
}

fn lines(run: &RunDir) -> Vec<String> {
    fs::read_to_string(run.journal()).unwrap().lines().map(str::to_owned).collect()
}

fn add(writer: &mut Writer, text: &str) -> io::Result<()> {
    let records = writer.number(Timestamp::from_micros(7), [(None, notice(text))]);
    writer.append(&records)
}

/// The run of the fixtures.
fn first_run() -> RunDir {
    RunDir::at(&Home::at("home"), RunId::new(1))
}

/// Records of a run, with their checksums.
fn sealed(text: &str) -> String {
    super::sealed(RunId::new(1), text)
}

fn read_all(bytes: &[u8]) -> Result<(Vec<Record>, u64), Error> {
    let mut reader = Reader::new(Cursor::new(bytes), &first_run());
    let mut records = Vec::new();
    while let Some(item) = reader.next()? {
        records.push(item.record);
    }
    Ok((records, reader.end()))
}

#[test]
fn the_known_types_are_those_of_the_schema() {
    let schema = serde_json::to_value(schemars::schema_for!(Fact)).unwrap();
    let mut types: Vec<&str> = schema["oneOf"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variant| variant["properties"]["type"]["const"].as_str().unwrap())
        .collect();
    types.sort_unstable();
    let mut known = read::KNOWN.to_vec();
    known.sort_unstable();
    assert_eq!(known, types);
}

#[test]
fn journals_of_version_1_replay_to_these_states() {
    let mut count = 0;
    for entry in fs::read_dir(fixtures()).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".jsonl").filter(|name| name.starts_with("v1-")) else { continue };
        let (records, end) =
            read_all(&fs::read(entry.path()).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(end, entry.metadata().unwrap().len(), "{name} has a torn end");
        // Released journals are written byte for byte the same today.
        let again: String = records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect();
        assert_eq!(sealed(&again), fs::read_to_string(entry.path()).unwrap(), "{name}");
        let status = Status::replay(&records);
        let text = serde_json::to_string_pretty(&status).unwrap();
        insta::assert_snapshot!(stem, format!("{:?}\n{text}", status.state));
        count += 1;
    }
    assert!(count >= 7, "only {count} fixtures");
}

/// A process forked by another test also holds the lock, until it executes its program.
fn let_go(run: &RunDir) {
    while crate::history::is_held(run).unwrap() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn each_supervisor_has_its_number_and_only_one_holds_the_run() {
    let (_directory, run) = run();
    let mut first = Writer::create(&run).unwrap();
    assert_eq!((first.epoch(), first.status().next_seq), (0, 0));
    add(&mut first, "a").unwrap();
    assert!(matches!(Writer::open(&run), Err(Error::Held { .. })));
    assert!(matches!(life(&run), Ok(Life::Live { .. })));
    drop(first);
    let_go(&run);
    assert!(matches!(life(&run), Ok(Life::Lost)));
    let mut second = Writer::open(&run).unwrap();
    assert_eq!((second.epoch(), second.status().next_seq), (1, 1));
    add(&mut second, "b").unwrap();
    second.sync().unwrap();
    assert_eq!(second.status().epoch, 1);
    let replay = replay(&run).unwrap();
    assert_eq!((replay.status.epoch, replay.status.next_seq), (1, 2));
}

#[test]
fn a_torn_end_is_cut_by_the_next_writer() {
    for torn in ["{\"v\":1,\"se", "{\"v\":1,\"seq\":1,\"at\":7,\"type\":\"paused\"}", "\0\0\0\n"] {
        let (_directory, run) = run();
        let mut writer = Writer::create(&run).unwrap();
        add(&mut writer, "a").unwrap();
        drop(writer);
        let_go(&run);
        let whole = fs::read_to_string(run.journal()).unwrap();
        fs::write(run.journal(), format!("{whole}{torn}")).unwrap();
        assert_eq!(replay(&run).unwrap().status.next_seq, 1);
        let mut writer = Writer::open(&run).unwrap();
        assert_eq!(fs::read_to_string(run.journal()).unwrap(), whole);
        add(&mut writer, "b").unwrap();
        assert_eq!(lines(&run).len(), 2);
    }
}

#[test]
fn what_could_not_be_written_is_written_later_and_in_order() {
    let line = {
        let (_directory, run) = run();
        let mut writer = Writer::create(&run).unwrap();
        add(&mut writer, "0").unwrap();
        lines(&run)[0].len() + 1
    };
    for room in 0..2 * line + 2 {
        let (_directory, run) = run();
        let mut writer = Writer::create(&run).unwrap();
        writer.room = Some(room);
        let mut failed = 0;
        for text in ["0", "1", "2"] {
            failed += usize::from(add(&mut writer, text).is_err());
        }
        assert!(failed > 0 && writer.retry().is_err(), "room {room}");
        assert_eq!(writer.status().next_seq, 3);
        assert_eq!(replay(&run).unwrap().status.next_seq, (room / line) as u64, "room {room}");
        writer.room = None;
        writer.retry().unwrap();
        assert_eq!(replay(&run).unwrap().status.next_seq, 3);
        assert_eq!(lines(&run).len(), 3);
    }
}

#[test]
fn a_line_that_another_supervisor_cut_is_begun_again() {
    let (_directory, run) = run();
    let mut old = Writer::create(&run).unwrap();
    add(&mut old, "a").unwrap();
    old.room = Some(10);
    assert!(add(&mut old, "b").is_err());
    // As if it had lost its lock, and the next writer had truncated the file and continued.
    let whole = lines(&run)[0].clone();
    let newer = "{\"v\":1,\"seq\":1,\"at\":9,\"epoch\":1,\"type\":\"paused\"}";
    fs::write(run.journal(), sealed(&format!("{whole}\n{newer}\n"))).unwrap();
    old.room = None;
    old.retry().unwrap();
    let status = replay(&run).unwrap().status;
    assert_eq!((status.next_seq, status.stale), (2, 1));
}

fn damage(bytes: &[u8]) -> Damage {
    match read_all(bytes) {
        Err(Error::Damaged(damage)) => *damage,
        other => panic!("{other:?}"),
    }
}

#[test]
fn damage_in_the_middle_names_its_record() {
    let good = |seq: u64| format!("{{\"v\":1,\"seq\":{seq},\"at\":7,\"type\":\"paused\"}}\n");
    let first = sealed(&good(0));
    for bad in
        ["\0\0\n", "\n", "{\"v\":1}\n", "[]\n", "{\"v\":1,\"seq\":1,\"at\":7,\"type\":\"started\"}\n", "{\"v\":1,\n"]
    {
        let damage = damage(sealed(&format!("{}{bad}{}", good(0), good(2))).as_bytes());
        assert_eq!((damage.record, damage.offset), (2, first.len() as u64), "{bad:?}: {damage:?}");
    }
}

/// The first record that was touched is named, whatever was done to it, and what is before it is read.
#[test]
fn every_change_of_records_is_found() {
    for name in 0..16 {
        let bytes = journal_of(name);
        let text = String::from_utf8(bytes).unwrap();
        if text.starts_with("{\"v\":2") {
            continue;
        }
        // Those of a replaced supervisor have no place among the others: they are ignored anyway.
        let mut epoch = 0;
        let text = sealed(
            &text
                .split_inclusive('\n')
                .filter(|line| {
                    let of = serde_json::from_str::<Record>(line).map_or(epoch, |record| record.epoch);
                    epoch = epoch.max(of);
                    of == epoch
                })
                .collect::<String>(),
        );
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let offset = |at: usize| lines[..at].concat().len() as u64;
        let check = |changed: Vec<&str>, at: usize, what: &str| {
            let damage = damage(changed.concat().as_bytes());
            assert_eq!(
                (damage.record, damage.offset),
                (at as u64 + 1, offset(at)),
                "{what} {at} of {name}: {damage:?}"
            );
        };
        for at in 0..lines.len() {
            if at + 1 < lines.len() {
                check([&lines[..at], &lines[at + 1..]].concat(), at, "removed");
                check([&lines[..at], &[lines[at + 1], lines[at]], &lines[at + 2..]].concat(), at, "swapped");
            }
            if at > 0 {
                check([&lines[..at], &lines[..at], &lines[at..]].concat(), at, "doubled range before");
            }
            let other = sealed_for_another(&text);
            let other: Vec<&str> = other.split_inclusive('\n').collect();
            check([&lines[..at], &other[at..=at], &lines[at + 1..]].concat(), at, "of another run");
        }
    }
}

fn sealed_for_another(text: &str) -> String {
    super::sealed(RunId::new(2), text)
}

#[test]
fn damage_is_accepted_by_cutting_and_nothing_is_lost() {
    let (_directory, run) = run();
    let mut writer = Writer::create(&run).unwrap();
    for text in ["a", "b", "c"] {
        add(&mut writer, text).unwrap();
    }
    assert!(matches!(accept_damage(&run), Err(Error::Held { .. })));
    drop(writer);
    let_go(&run);
    assert_eq!(accept_damage(&run).unwrap(), None);
    let whole = lines(&run);
    let damaged = format!("{}\n{}\n{}\n", whole[0], whole[1].replace("\"b\"", "\"x\""), whole[2]);
    fs::write(run.journal(), &damaged).unwrap();
    assert!(matches!(Writer::open(&run), Err(Error::Damaged(damage)) if damage.record == 2));
    assert_eq!(replay(&run).unwrap().status.next_seq, 1);
    let (damage, copy) = accept_damage(&run).unwrap().unwrap();
    assert_eq!((damage.record, damage.offset), (2, whole[0].len() as u64 + 1));
    assert_eq!(fs::read_to_string(copy).unwrap(), damaged);
    let mut writer = Writer::open(&run).unwrap();
    add(&mut writer, "d").unwrap();
    assert!(replay(&run).unwrap().seen.damage.is_none());
    assert_eq!(lines(&run).len(), 2);
}

#[test]
fn a_journal_without_a_record_of_a_run_that_has_begun_is_damaged() {
    let (_directory, run) = run();
    assert!(replay(&run).unwrap().seen.damage.is_none(), "a new run");
    run.write_supervisor(&crate::history::Supervisor::here(0, &run.control())).unwrap();
    for bytes in [None, Some(""), Some("{\"v\":1,\"se")] {
        if let Some(bytes) = bytes {
            fs::write(run.journal(), bytes).unwrap();
        }
        assert_eq!(replay(&run).unwrap().seen.damage.map(|damage| damage.offset), Some(0), "{bytes:?}");
    }
    assert!(matches!(Writer::open(&run), Err(Error::Damaged(_))));
    accept_damage(&run).unwrap().unwrap();
    assert_eq!(Writer::open(&run).unwrap().epoch(), 0);
}

#[test]
fn facts_of_a_newer_umiak_are_skipped_by_readers_and_respected_by_writers() {
    let future = fs::read(fixtures().join("future-minor.jsonl")).unwrap();
    let (records, _) = read_all(&future).unwrap();
    let status = Status::replay(&records);
    assert!(status.is_finished());
    assert_eq!(status.next_seq, records.len() as u64);
    let (_directory, run) = run();
    fs::write(run.journal(), &future).unwrap();
    let replayed = replay(&run).unwrap();
    assert!(replayed.seen.unknown > 0 && replayed.seen.newer.is_none());
    assert_eq!(Writer::open(&run).unwrap().epoch(), 1);

    fs::write(run.journal(), fs::read(fixtures().join("future-major.jsonl")).unwrap()).unwrap();
    let replayed = replay(&run).unwrap();
    assert_eq!(replayed.seen.newer, Some(2));
    assert_eq!(replayed.status.job, "llama-sft");
    assert!(matches!(Writer::open(&run), Err(Error::Newer { found: 2, known: 1, .. })));
}

#[test]
fn a_follower_sees_what_comes_and_that_the_writer_went() {
    let (_directory, run) = run();
    let mut follower = Follower::open(&run).unwrap();
    assert!(follower.next().unwrap().is_none());
    let mut writer = Writer::create(&run).unwrap();
    let thread = std::thread::spawn(move || {
        for text in ["a", "b", "c"] {
            add(&mut writer, text).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    let mut seen = 0;
    while seen < 3 || !matches!(follower.life().unwrap(), Life::Lost) {
        while follower.next().unwrap().is_some() {
            seen += 1;
        }
        if seen == 3 && matches!(follower.life().unwrap(), Life::Lost) {
            break;
        }
        follower.wait(&[]).unwrap();
    }
    thread.join().unwrap();
    assert_eq!(follower.status().next_seq, 3);
}

/// As when a writer's death is reported before its lock is released.
#[test]
fn a_follower_looks_again_after_an_event_without_news() {
    let (_directory, run) = run();
    let mut writer = Writer::create(&run).unwrap();
    add(&mut writer, "a").unwrap();
    let mut follower = Follower::open(&run).unwrap();
    follower.catch_up().unwrap();
    drop(std::fs::File::options().append(true).open(run.journal()).unwrap());
    for _ in 0..3 {
        follower.wait(&[]).unwrap();
    }
    assert!(matches!(follower.life().unwrap(), Life::Live { .. }));
}

#[test]
fn a_follower_goes_on_behind_an_end_that_was_cut() {
    let (_directory, run) = run();
    let mut writer = Writer::create(&run).unwrap();
    add(&mut writer, "a").unwrap();
    writer.room = Some(20);
    assert!(add(&mut writer, "a long line that is not completed").is_err());
    let mut follower = Follower::open(&run).unwrap();
    follower.catch_up().unwrap();
    drop(writer);
    let_go(&run);
    let mut writer = Writer::open(&run).unwrap();
    add(&mut writer, "b").unwrap();
    follower.catch_up().unwrap();
    assert_eq!((follower.status().next_seq, follower.status().epoch), (2, 1));
}

#[test]
fn a_pipeline_has_nodes_for_all_readers() {
    let (_directory, run) = run();
    let mut writer = Writer::create(&run).unwrap();
    add(&mut writer, "a").unwrap();
    assert!(writer.pipeline().is_none());
    let step = || Some(StepName::new("dag.3.train").unwrap());
    let facts = [(None, Fact::Pipeline(Box::default())), (step(), Fact::Skipped { why: SkipReason::Condition })];
    let records = writer.number(Timestamp::from_micros(7), facts);
    writer.append(&records).unwrap();
    let mut follower = Follower::open(&run).unwrap();
    follower.catch_up().unwrap();
    let replay = replay(&run).unwrap();
    for pipeline in [writer.pipeline(), follower.pipeline(), replay.pipeline.as_deref()] {
        assert_eq!(pipeline.unwrap().node("dag.3.train").unwrap().ended(), Some(NodeEnd::Skipped));
    }
    assert_eq!(writer.status().next_seq, 3, "records of steps are records of the run");
}

/// Not a test: the process that [`the_failpoint_kills_where_it_is_told`] kills.
#[test]
fn victim_of_the_failpoint() {
    let Ok(home) = std::env::var("UMIAK_TEST_JOURNAL_VICTIM") else { return };
    let run = RunDir::create(&Home::at(home)).unwrap();
    let mut writer = Writer::create(&run).unwrap();
    add(&mut writer, "a").unwrap();
    let two = writer.number(Timestamp::from_micros(7), [(None, notice("b")), (None, notice("c"))]);
    writer.append(&two).unwrap();
    add(&mut writer, "d").unwrap();
}

#[test]
fn the_failpoint_kills_where_it_is_told() {
    use std::os::unix::process::ExitStatusExt as _;
    for (die, whole, torn) in
        [("1", 1, 0), ("2", 2, 0), ("3", 3, 0), ("0.5", 0, 5), ("1.7", 1, 7), ("2.1", 2, 1), ("3.0", 3, 0)]
    {
        let directory = tempfile::tempdir().unwrap();
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "history::journal::tests::victim_of_the_failpoint"])
            .env("UMIAK_TEST_JOURNAL_VICTIM", directory.path())
            .env("UMIAK_TEST_JOURNAL_DIE", die)
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(9), "{die}");
        let bytes = fs::read(directory.path().join("runs/run-000001/journal.jsonl")).unwrap();
        assert_eq!(bytes.split(|byte| *byte == b'\n').count() - 1, whole, "{die}");
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        assert_eq!(bytes.len() - end, torn, "{die}");
    }
}

fn journal_of(name: usize) -> Vec<u8> {
    let mut names: Vec<PathBuf> = fs::read_dir(fixtures())
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    names.sort();
    fs::read(&names[name % names.len()]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_journal_cut_anywhere_is_its_whole_records(name in 0usize..64, at in 0.0f64..=1.0) {
        let bytes = journal_of(name);
        let cut = (bytes.len() as f64 * at) as usize;
        let whole = bytes[..cut].split(|byte| *byte == b'\n').count() - 1;
        let (all, _) = read_all(&bytes).unwrap();
        let (records, end) = read_all(&bytes[..cut]).unwrap();
        prop_assert_eq!(&records[..], &all[..whole]);
        prop_assert_eq!(end as usize, bytes[..cut].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
        // Replaying in two parts gives the same result.
        let mut parts = Status::replay(&records);
        all[whole..].iter().for_each(|record| parts.add(record));
        prop_assert_eq!(parts, Status::replay(&all));
    }

    /// Whichever byte is changed: the records before it are read, and its own is not.
    #[test]
    fn a_changed_byte_is_found(name in 0usize..64, at in 0.0f64..1.0, byte in any::<u8>()) {
        let bytes = journal_of(name);
        let place = (bytes.len() as f64 * at) as usize;
        prop_assume!(bytes[place] != byte && !bytes.starts_with(b"{\"v\":2"));
        let before = bytes[..place].split(|byte| *byte == b'\n').count() - 1;
        let mut changed = bytes.clone();
        changed[place] = byte;
        let mut reader = Reader::new(Cursor::new(&changed), &first_run());
        let mut read = 0;
        while let Ok(Some(item)) = reader.next() {
            // Its rules are not known; no supervisor continues such a journal.
            prop_assume!(item.record.v == 1);
            read += 1;
        }
        prop_assert_eq!(read, before);
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), name in 0usize..64, at in 0.0f64..=1.0) {
        let mut journal = journal_of(name);
        let place = (journal.len() as f64 * at) as usize;
        journal.splice(place..place, bytes);
        let _ = read_all(&journal);
    }
}
