//! The inputs that campaigns have found, as they are kept in the repository: a file for each target
//! under `fuzz/inputs/`, in which each input has its length before it, in four bytes. The same
//! inputs make the same file.

/// Bytes of a file: what a repository has room for, for each change of them.
pub const BYTES_MAX: usize = 64 << 10;
/// Inputs in a file: what ordinary tests have time for.
pub const INPUTS_MAX: usize = 512;

const LENGTH: usize = size_of::<u32>();

/// Makes a file of the smallest of these inputs, as many as there is room for.
pub fn pack(mut inputs: Vec<Vec<u8>>) -> Vec<u8> {
    inputs.sort_by(|one, other| (one.len(), one).cmp(&(other.len(), other)));
    inputs.dedup();
    let mut file = Vec::new();
    for input in inputs.iter().take(INPUTS_MAX) {
        if file.len() + LENGTH + input.len() > BYTES_MAX {
            break;
        }
        // Shorter than the file's maximum.
        file.extend((input.len() as u32).to_le_bytes());
        file.extend(input);
    }
    file
}

/// The inputs of a file, or why it is none.
pub fn unpack(mut file: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut inputs = Vec::new();
    while !file.is_empty() {
        let input = file
            .split_first_chunk()
            .and_then(|(length, rest)| rest.split_at_checked(u32::from_le_bytes(*length) as usize));
        let (input, rest) = input.ok_or("an input is cut short")?;
        inputs.push(input.to_vec());
        file = rest;
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back_smallest_first_and_once() {
        let inputs = [&b"long one"[..], b"b", b"", b"a", b"b"].map(<[u8]>::to_vec);
        let file = pack(inputs.to_vec());
        let expected = [&b""[..], b"a", b"b", b"long one"];
        assert_eq!(unpack(&file).unwrap(), expected);
        let mut backwards = inputs.to_vec();
        backwards.reverse();
        assert_eq!(pack(backwards), file);
        assert_eq!(unpack(&[]).unwrap(), [[0_u8; 0]; 0]);
    }

    #[test]
    fn the_largest_are_left_out() {
        let small: Vec<_> = (0..INPUTS_MAX as u32).map(|n| n.to_le_bytes()).collect();
        let mut inputs: Vec<_> = small.iter().map(|input| input.to_vec()).collect();
        inputs.push(vec![0; 5]);
        assert_eq!(unpack(&pack(inputs)).unwrap().len(), INPUTS_MAX);
        let large = [BYTES_MAX / 2, BYTES_MAX / 4, BYTES_MAX / 2 + 1].map(|len| vec![7; len]);
        let file = pack(large.to_vec());
        assert!(file.len() <= BYTES_MAX);
        let lengths: Vec<_> = unpack(&file).unwrap().iter().map(Vec::len).collect();
        assert_eq!(lengths, [BYTES_MAX / 4, BYTES_MAX / 2]);
    }

    #[test]
    fn a_file_that_was_cut_is_none() {
        let file = pack(vec![b"input".to_vec()]);
        for len in 1..file.len() {
            assert!(unpack(&file[..len]).is_err(), "{len}");
        }
    }
}
