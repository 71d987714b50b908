//! The order in which the parts of a document depend on each other, and the cycles in it.

/// Visits nodes `0..count` in depth-first order. `next` is the nth node that a node depends on; `cycle` is called with
/// each path that leads back to its own start. Returns every node after those that it depends on.
pub(crate) fn ordered(
    count: usize,
    next: impl Fn(usize, usize) -> Option<usize>,
    mut cycle: impl FnMut(&mut dyn Iterator<Item = usize>),
) -> Vec<usize> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        Not,
        /// At this place of the path.
        OnPath(usize),
        Done,
    }
    let mut seen = vec![Seen::Not; count];
    let mut order = Vec::with_capacity(count);
    // The path is explicit, because recursion could be thousands of nodes deep.
    let mut path: Vec<(usize, usize)> = Vec::new();
    for start in 0..count {
        if seen[start] == Seen::Not {
            seen[start] = Seen::OnPath(0);
            path.push((start, 0));
        }
        while let Some((node, nth)) = path.last_mut() {
            let (node, at) = (*node, *nth);
            *nth += 1;
            let Some(other) = next(node, at) else {
                seen[node] = Seen::Done;
                order.push(node);
                path.pop();
                continue;
            };
            match seen[other] {
                Seen::Not => {
                    seen[other] = Seen::OnPath(path.len());
                    path.push((other, 0));
                }
                Seen::OnPath(place) => cycle(&mut path[place..].iter().map(|(node, _)| *node)),
                Seen::Done => {}
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::ordered;

    fn run(edges: &[&[usize]]) -> (Vec<usize>, Vec<Vec<usize>>) {
        let mut cycles = Vec::new();
        let order = ordered(edges.len(), |node, nth| edges[node].get(nth).copied(), |path| cycles.push(path.collect()));
        (order, cycles)
    }

    #[test]
    fn dependencies_come_first() {
        assert_eq!(run(&[&[1, 2], &[2], &[], &[0]]), (vec![2, 1, 0, 3], vec![]));
    }

    #[test]
    fn each_cycle_once() {
        assert_eq!(run(&[&[1], &[2], &[1, 2]]).1, [vec![1, 2], vec![2]]);
        assert_eq!(run(&[&[0]]).1, [vec![0]]);
    }

    #[test]
    fn long_paths() {
        let count = 1_000_000;
        let order = ordered(count, |node, nth| (nth == 0 && node + 1 < count).then_some(node + 1), |_| panic!());
        assert_eq!(order.first(), Some(&(count - 1)));
    }
}
