//! Writes the seed corpus: a file for each input under `DIRECTORY/TARGET/`. `make fuzz` calls it.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let directory = env::args()
        .nth(1)
        .unwrap_or_else(|| "fuzz/corpus".to_owned());
    let mut count = 0;
    for (target, seed) in fuzzing::seeds::all() {
        let directory = Path::new(&directory).join(target);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(format!("seed-{count:03}")), seed)?;
        count += 1;
    }
    println!("{count} seeds under {directory}");
    Ok(())
}
