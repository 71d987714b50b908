//! Node lists as Slurm reads them.

use umiak_core::formats::hostlist::expand;
use umiak_testkit::components::Component::Slurm as Needed;
use umiak_testkit::components::trials;
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

pub(super) fn register(suite: &mut Suite) {
    suite.test("slurm::lists::are_expanded_as_by_scontrol", &[Needed], as_by_scontrol);
}

fn as_by_scontrol() {
    let slurm = Slurm::start(1);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..trials(50).max(50) {
        let list = list(&mut random);
        let theirs: Vec<String> =
            slurm.ask("scontrol", &["show", "hostnames", &list]).lines().map(str::to_owned).collect();
        assert_eq!(expand(&list, 100_000).as_ref(), Ok(&theirs), "{list} (seed {seed})");
        // The other way round: Slurm's own short form of these names.
        let short = slurm.ask("scontrol", &["show", "hostlist", &theirs.join(",")]);
        assert_eq!(expand(&short, 100_000), Ok(theirs), "{short} (seed {seed})");
    }
}

/// One to three items, each with up to three groups. The last group ends the name, as this version of Slurm requires.
fn list(random: &mut fastrand::Rng) -> String {
    let items = (0..random.usize(1..4)).map(|_| {
        let groups: Vec<String> =
            (0..random.usize(0..4)).map(|_| format!("{}{}", text(random), group(random))).collect();
        if groups.is_empty() { format!("{}{}", text(random), random.u32(0..20)) } else { groups.concat() }
    });
    items.collect::<Vec<_>>().join(",")
}

fn text(random: &mut fastrand::Rng) -> &'static str {
    ["n", "gpu-", "rack", "a.b-c", "x"][random.usize(0..5)]
}

fn group(random: &mut fastrand::Rng) -> String {
    let spans = (0..random.usize(1..4)).map(|_| {
        let width = random.usize(1..4);
        let low = random.u32(0..12);
        match random.u32(0..3) {
            0 => format!("{low:0width$}"),
            length => format!("{low:0width$}-{:0width$}", low + length),
        }
    });
    format!("[{}]", spans.collect::<Vec<_>>().join(","))
}
