//! How many workers there are to be, and on which cores: `-u 0,2-3`, `--workers 3`.

use dataplane::queue::MAX_WORKERS;

/// Cores as `-u` and `graph-cpu-core` take them: numbers and ranges, `0,2-3`. One worker runs on
/// each, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores(Vec<usize>);

impl Cores {
    /// One core alone.
    pub fn one(core: usize) -> Cores {
        Cores(vec![core])
    }
}

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&names.join(","))
    }
}

impl std::str::FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Cores, String> {
        let bad = || format!("'{text}' is not a list of cores such as 1 or 0,2-3");
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (
                first.parse().map_err(|_| bad())?,
                last.parse().map_err(|_| bad())?,
            );
            if first > last {
                return Err(bad());
            }
            // One more is enough to be too many.
            for core in (first..=last).take(MAX_WORKERS + 1) {
                if cores.contains(&core) {
                    return Err(format!("'{text}' names core {core} twice"));
                }
                cores.push(core);
            }
            if cores.len() > MAX_WORKERS {
                return Err(format!("'{text}' is more than {MAX_WORKERS} cores"));
            }
        }
        Ok(Cores(cores))
    }
}

/// One entry a worker, with the core that it is to stay on.
pub fn workers(cores: Option<Cores>, count: Option<usize>) -> Result<Vec<Option<usize>>, String> {
    match (cores, count) {
        (None, count) => Ok(vec![None; count.unwrap_or(1)]),
        (Some(Cores(cores)), None) => Ok(cores.into_iter().map(Some).collect()),
        (Some(Cores(cores)), Some(count)) if count == cores.len() => {
            Ok(cores.into_iter().map(Some).collect())
        }
        (Some(Cores(cores)), Some(count)) => Err(format!(
            "--workers {count} does not fit the {} cores that are named: one worker runs on each",
            cores.len()
        )),
    }
}

/// A count as `--workers` and `workers` take it.
pub fn count(text: &str) -> Result<usize, String> {
    let count = text
        .parse()
        .ok()
        .filter(|count| (1..=MAX_WORKERS).contains(count));
    count.ok_or_else(|| format!("'{text}' is not a number within 1 and {MAX_WORKERS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_each_core_once() {
        for (text, cores) in [
            ("1", Ok(vec![1])),
            ("0,2-4,1", Ok(vec![0, 2, 3, 4, 1])),
            ("3-3", Ok(vec![3])),
            ("0-31", Ok((0..32).collect())),
            ("", Err("'' is not a list of cores such as 1 or 0,2-3")),
            ("1,", Err("'1,' is not a list of cores such as 1 or 0,2-3")),
            (
                "3-2",
                Err("'3-2' is not a list of cores such as 1 or 0,2-3"),
            ),
            ("-1", Err("'-1' is not a list of cores such as 1 or 0,2-3")),
            (
                "0x1",
                Err("'0x1' is not a list of cores such as 1 or 0,2-3"),
            ),
            ("0-2,1", Err("'0-2,1' names core 1 twice")),
            ("0-32", Err("'0-32' is more than 32 cores")),
            (
                "0-18446744073709551615",
                Err("'0-18446744073709551615' is more than 32 cores"),
            ),
        ] {
            let expected = cores.map(Cores).map_err(str::to_owned);
            assert_eq!(text.parse::<Cores>(), expected, "{text}");
        }
    }

    #[test]
    fn a_count_alone_pins_nothing_and_beside_a_list_says_the_same() {
        let list = || Some(Cores(vec![4, 2]));
        assert_eq!(workers(None, None), Ok(vec![None]));
        assert_eq!(workers(None, Some(3)), Ok(vec![None; 3]));
        assert_eq!(workers(list(), None), Ok(vec![Some(4), Some(2)]));
        assert_eq!(workers(list(), Some(2)), Ok(vec![Some(4), Some(2)]));
        assert_eq!(
            workers(list(), Some(1)),
            Err(
                "--workers 1 does not fit the 2 cores that are named: one worker runs on each"
                    .into()
            )
        );
        assert_eq!(
            (count("32"), count("0").is_err(), count("33").is_err()),
            (Ok(32), true, true)
        );
    }
}
