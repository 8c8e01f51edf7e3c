//! Target `filter`: a client's filter of a capture, in classic BPF, and frames that it is run on.
//!
//! Promises: a program that is taken ends after as many steps as it has instructions, and says what
//! the same instructions say when they are read one by one ([`judged`]); what it says of a frame's
//! beginning it says of the whole frame, or asks for more; of a whole frame it never does.
//!
//! Input: how many instructions (with 0x80: and no end of ours), each as [`instruction`] reads it;
//! how much of the frame is its beginning; the frame.

use wire::bpf::{Filter, Instruction, NeedsMore};

use crate::input::Input;

/// `ret #k`, `ret a`.
const RETURN: u16 = 0x06;
const RETURN_A: u16 = 0x16;

/// Every instruction that libpcap writes.
pub const CODES: [u16; 47] = [
    0x00, 0x01, 0x80, 0x81, 0x60, 0x61, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1, 0x02, 0x03, 0x04,
    0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x84,
    0x94, 0x9c, 0xa4, 0xac, 0x05, 0x15, 0x1d, 0x25, 0x2d, 0x35, 0x45, 0x07, 0x3d, 0x4d, 0x87,
];

/// Checks a program, and runs it.
pub fn filter(data: &[u8]) {
    let mut input = Input::new(data);
    let count = input.u8();
    let mut program: Vec<_> = (0..count & 0x7f).map(|_| instruction(&mut input)).collect();
    if count & 0x80 == 0 {
        program.push(plain(RETURN_A));
    }
    let Ok(filter) = Filter::new(&program) else {
        return;
    };
    let part = usize::from(input.u16());
    let frame = input.take(data.len());
    let whole = filter.wants(frame, frame.len());
    assert!(whole.is_ok(), "there is no more");
    assert_eq!(whole, judged(&program, frame, frame.len()), "{program:?}");
    let head = &frame[..part.min(frame.len())];
    let said = filter.wants(head, frame.len());
    assert_eq!(said, judged(&program, head, frame.len()), "{program:?}");
    assert!(said == Err(NeedsMore) || said == whole, "{program:?}");
}

/// One of those that there are with small numbers, or any at all.
fn instruction(input: &mut Input<'_>) -> Instruction {
    match input.u8() {
        choice @ 0..0xf0 => {
            let skips = input.u8();
            Instruction {
                jt: skips >> 4,
                jf: skips & 15,
                k: input.u8().into(),
                ..plain(CODES[usize::from(choice) % CODES.len()])
            }
        }
        _ => Instruction {
            code: input.u16(),
            jt: input.u8(),
            jf: input.u8(),
            k: input.u32(),
        },
    }
}

fn plain(code: u16) -> Instruction {
    Instruction {
        code,
        jt: 0,
        jf: 0,
        k: 0,
    }
}

/// What a program says of a frame (`linux/bpf_common.h`; filter.rst of Linux), by its instructions
/// as they are, each of which it comes to once at most.
fn judged(program: &[Instruction], head: &[u8], len: usize) -> Result<bool, NeedsMore> {
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; 16], 0usize);
    for _ in program {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let operand = if code & 8 == 0 { k } else { x };
        match code {
            0x00 => a = k,
            0x01 => x = k,
            0x80 => a = len as u32,
            0x81 => x = len as u32,
            0x60 => a = memory[k as usize],
            0x61 => x = memory[k as usize],
            0x02 => memory[k as usize] = a,
            0x03 => memory[k as usize] = x,
            0x07 => x = a,
            0x87 => a = x,
            RETURN => return Ok(k != 0),
            RETURN_A => return Ok(a != 0),
            // Loads.
            0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0xb1 => {
                let start = match code & 0xe0 {
                    0x40 => x.wrapping_add(k),
                    _ => k,
                } as usize;
                let width = match code & 0x18 {
                    0x00 => 4,
                    0x08 => 2,
                    _ => 1,
                };
                if start + width > len {
                    return Ok(false);
                }
                let bytes = head.get(start..start + width).ok_or(NeedsMore)?;
                let mut word = [0; 4];
                word[4 - width..].copy_from_slice(bytes);
                match code {
                    0xb1 => x = u32::from(word[3] & 15) * 4,
                    _ => a = u32::from_be_bytes(word),
                }
            }
            0x05 => at += k as usize,
            _ if code & 7 == 5 => {
                let holds = match code & 0xf0 {
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    0x40 => a & operand != 0,
                    _ => unreachable!("jump {code:#x} was taken"),
                };
                at += usize::from(if holds { jt } else { jf });
            }
            0x84 => a = a.wrapping_neg(),
            0x34 | 0x3c | 0x94 | 0x9c if operand == 0 => return Ok(false),
            _ if code & 7 == 4 => {
                a = match code & 0xf0 {
                    0x00 => a.wrapping_add(operand),
                    0x10 => a.wrapping_sub(operand),
                    0x20 => a.wrapping_mul(operand),
                    0x30 => a / operand,
                    0x40 => a | operand,
                    0x50 => a & operand,
                    0x60 if operand < 32 => a << operand,
                    0x70 if operand < 32 => a >> operand,
                    0x60 | 0x70 => 0,
                    0x90 => a % operand,
                    0xa0 => a ^ operand,
                    _ => unreachable!("arithmetic {code:#x} was taken"),
                };
            }
            _ => unreachable!("instruction {code:#x} was taken"),
        }
    }
    unreachable!("more steps than instructions");
}
