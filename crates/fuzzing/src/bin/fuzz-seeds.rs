//! The inputs that a fuzzer begins with; `fuzz/run.sh` and `fuzz/keep.sh` call it:
//!
//! - `fuzz-seeds DIRECTORY`: writes the seeds, a file for each under `DIRECTORY/TARGET/`;
//! - `fuzz-seeds pack DIRECTORY FILE`: makes of the inputs in a folder a file to be kept;
//! - `fuzz-seeds unpack FILE DIRECTORY`: writes the inputs of such a file into a folder.

use std::path::Path;
use std::{env, fs, io};

use fuzzing::{kept, seeds};

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["pack", directory, file] => pack(directory.as_ref(), file.as_ref()),
        ["unpack", file, directory] => unpack(file.as_ref(), directory.as_ref()),
        [directory] => write_seeds(directory.as_ref()),
        _ => Err(io::Error::other(
            "fuzz-seeds DIRECTORY, pack DIRECTORY FILE, or unpack FILE DIRECTORY",
        )),
    }
}

fn write_seeds(directory: &Path) -> io::Result<()> {
    let mut count = 0;
    for (target, seed) in seeds::all() {
        let directory = directory.join(target);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(format!("seed-{count:03}")), seed)?;
        count += 1;
    }
    println!("{count} seeds under {}", directory.display());
    Ok(())
}

fn pack(directory: &Path, file: &Path) -> io::Result<()> {
    let inputs = fs::read_dir(directory)?.map(|entry| fs::read(entry?.path()));
    let inputs: Vec<_> = inputs.collect::<Result<_, _>>()?;
    let count = inputs.len();
    let packed = kept::pack(inputs);
    let taken = kept::unpack(&packed).map_err(io::Error::other)?.len();
    println!("{}: {taken} of {count} inputs", file.display());
    fs::write(file, packed)
}

fn unpack(file: &Path, directory: &Path) -> io::Result<()> {
    let inputs = kept::unpack(&fs::read(file)?);
    let inputs = inputs.map_err(|why| io::Error::other(format!("{}: {why}", file.display())))?;
    fs::create_dir_all(directory)?;
    for (number, input) in inputs.iter().enumerate() {
        fs::write(directory.join(format!("kept-{number:03}")), input)?;
    }
    Ok(())
}
