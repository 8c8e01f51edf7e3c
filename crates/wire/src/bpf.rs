//! Classic BPF (McCanne and Jacobson 1993; Linux's `filter.rst`), as libpcap compiles its filters
//! to: checked once, then run on frames.
//!
//! The programs come from clients. [`Filter::new`] refuses what could not end or reads outside its
//! memory: jumps go forward and stay inside, so that a program ends after as many steps as it has
//! instructions. A load beyond the frame ends the program with "no", as in the kernel.

/// The most instructions of a program, as in the kernel (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = 4096;
/// A division takes as long as so many other steps.
const DIVISION_STEPS: usize = 4;
/// Words of scratch memory.
const MEMORY: usize = 16;

/// One instruction, `struct bpf_insn`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// How many instructions are skipped if a condition holds.
    pub jt: u8,
    /// And if it does not.
    pub jf: u8,
    /// A constant.
    pub k: u32,
}

/// Why a program is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterError {
    /// None, or more than [`INSTRUCTIONS_MAX`].
    Length(usize),
    /// Instruction `.0` is not one of classic BPF, or has a constant that it cannot have.
    Instruction(usize),
    /// Instruction `.0` jumps out of the program.
    Jump(usize),
    /// The last instruction does not end the program.
    End,
}

impl std::fmt::Display for FilterError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FilterError::Length(length) => write!(
                f,
                "a filter of {length} instructions: it has 1 to {INSTRUCTIONS_MAX}"
            ),
            FilterError::Instruction(at) => write!(f, "the filter's instruction {at} is none"),
            FilterError::Jump(at) => write!(f, "the filter's instruction {at} jumps out of it"),
            FilterError::End => write!(f, "the filter does not end"),
        }
    }
}

impl std::error::Error for FilterError {}

/// A program that was checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter(Box<[Op]>);

/// What a program reads beyond what it was given of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeedsMore;

/// An instruction, decoded. Jumps are relative to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    LoadConstant(Register, u32),
    LoadLength(Register),
    LoadMemory(Register, usize),
    /// Bytes at an offset, of this width.
    Load(u32, usize),
    /// Bytes at X and an offset.
    LoadIndexed(u32, usize),
    /// Four times the low half of a byte: the length of an IPv4 header.
    LoadHeaderLength(u32),
    Store(Register, usize),
    Calculate(Arithmetic, Operand),
    Negate,
    Jump(usize),
    Branch(Condition, Operand, u8, u8),
    Return(Option<u32>),
    ToX,
    ToA,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Register {
    A,
    X,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operand {
    K(u32),
    X,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Or,
    And,
    ShiftLeft,
    ShiftRight,
    Modulo,
    Xor,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Condition {
    Equal,
    Greater,
    GreaterOrEqual,
    AnySet,
}

impl Filter {
    /// Checks a program.
    pub fn new(program: &[Instruction]) -> Result<Filter, FilterError> {
        if program.is_empty() || program.len() > INSTRUCTIONS_MAX {
            return Err(FilterError::Length(program.len()));
        }
        let each = program.iter().enumerate().map(|(at, instruction)| {
            let op = decode(instruction).ok_or(FilterError::Instruction(at))?;
            let behind = program.len() - at - 1;
            let inside = match op {
                Op::Jump(skip) => skip < behind,
                Op::Branch(_, _, yes, no) => usize::from(yes.max(no)) < behind,
                _ => true,
            };
            inside.then_some(op).ok_or(FilterError::Jump(at))
        });
        let ops: Box<[Op]> = each.collect::<Result<_, _>>()?;
        match ops.last() {
            Some(Op::Return(_)) => Ok(Filter(ops)),
            _ => Err(FilterError::End),
        }
    }

    /// Whether a frame of `len` bytes is wanted, of which `head` is the beginning. `NeedsMore` when
    /// that depends on bytes behind `head`.
    pub fn wants(&self, head: &[u8], len: usize) -> Result<bool, NeedsMore> {
        self.wants_counted(head, len, &mut 0)
    }

    /// The same, and adds to `steps` how many instructions that took. A division counts as
    /// several, which take as long.
    pub fn wants_counted(
        &self,
        head: &[u8],
        len: usize,
        steps: &mut usize,
    ) -> Result<bool, NeedsMore> {
        let (mut a, mut x) = (0u32, 0u32);
        let mut memory = [0u32; MEMORY];
        let mut at = 0;
        // A load beyond the frame is a no; beyond what is given of it, a question for more.
        let outside = |start: usize, width: usize| match start.saturating_add(width) > len {
            true => Ok(false),
            false => Err(NeedsMore),
        };
        loop {
            // Jumps stay inside, and the last instruction is a return.
            let Some(op) = self.0.get(at) else {
                return Ok(false);
            };
            at += 1;
            *steps += 1;
            match *op {
                Op::LoadConstant(Register::A, k) => a = k,
                Op::LoadConstant(Register::X, k) => x = k,
                Op::LoadLength(Register::A) => a = len as u32,
                Op::LoadLength(Register::X) => x = len as u32,
                Op::LoadMemory(Register::A, slot) => a = memory[slot % MEMORY],
                Op::LoadMemory(Register::X, slot) => x = memory[slot % MEMORY],
                Op::Load(k, width) => match load(head, k as usize, width) {
                    Some(value) => a = value,
                    None => return outside(k as usize, width),
                },
                Op::LoadIndexed(k, width) => {
                    // Offsets wrap in 32 bits, as in the kernel.
                    let start = x.wrapping_add(k) as usize;
                    match load(head, start, width) {
                        Some(value) => a = value,
                        None => return outside(start, width),
                    }
                }
                Op::LoadHeaderLength(k) => match load(head, k as usize, 1) {
                    Some(value) => x = (value & 15) * 4,
                    None => return outside(k as usize, 1),
                },
                Op::Store(Register::A, slot) => memory[slot % MEMORY] = a,
                Op::Store(Register::X, slot) => memory[slot % MEMORY] = x,
                Op::Calculate(how, operand) => {
                    if matches!(how, Arithmetic::Divide | Arithmetic::Modulo) {
                        *steps += DIVISION_STEPS - 1;
                    }
                    match calculate(how, a, value(operand, x)) {
                        Some(result) => a = result,
                        // A division by zero.
                        None => return Ok(false),
                    }
                }
                Op::Negate => a = a.wrapping_neg(),
                Op::Jump(skip) => at += skip,
                Op::Branch(condition, operand, yes, no) => {
                    let holds = holds(condition, a, value(operand, x));
                    at += usize::from(if holds { yes } else { no });
                }
                Op::Return(Some(k)) => return Ok(k != 0),
                Op::Return(None) => return Ok(a != 0),
                Op::ToX => x = a,
                Op::ToA => a = x,
            }
        }
    }
}

fn load(bytes: &[u8], start: usize, width: usize) -> Option<u32> {
    let bytes = bytes.get(start..start.checked_add(width)?)?;
    Some(
        bytes
            .iter()
            .fold(0, |value, byte| value << 8 | u32::from(*byte)),
    )
}

fn value(operand: Operand, x: u32) -> u32 {
    match operand {
        Operand::K(k) => k,
        Operand::X => x,
    }
}

fn calculate(how: Arithmetic, a: u32, b: u32) -> Option<u32> {
    Some(match how {
        Arithmetic::Add => a.wrapping_add(b),
        Arithmetic::Subtract => a.wrapping_sub(b),
        Arithmetic::Multiply => a.wrapping_mul(b),
        Arithmetic::Divide => a.checked_div(b)?,
        Arithmetic::Modulo => a.checked_rem(b)?,
        Arithmetic::Or => a | b,
        Arithmetic::And => a & b,
        Arithmetic::Xor => a ^ b,
        Arithmetic::ShiftLeft => a.checked_shl(b).unwrap_or(0),
        Arithmetic::ShiftRight => a.checked_shr(b).unwrap_or(0),
    })
}

fn holds(condition: Condition, a: u32, b: u32) -> bool {
    match condition {
        Condition::Equal => a == b,
        Condition::Greater => a > b,
        Condition::GreaterOrEqual => a >= b,
        Condition::AnySet => a & b != 0,
    }
}

/// The fields of a code are those of `linux/bpf_common.h`.
fn decode(instruction: &Instruction) -> Option<Op> {
    let Instruction { code, jt, jf, k } = *instruction;
    if code > 0xff {
        return None;
    }
    let operand = match code & 8 {
        0 => Operand::K(k),
        _ => Operand::X,
    };
    let slot = || usize::try_from(k).ok().filter(|slot| *slot < MEMORY);
    let width = match code & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => return decode_other(code, jt, jf, k, operand, slot),
    };
    match (code & 7, code & 0xe0) {
        (0, 0x00) if width == 4 => Some(Op::LoadConstant(Register::A, k)),
        (0, 0x20) => Some(Op::Load(k, width)),
        (0, 0x40) => Some(Op::LoadIndexed(k, width)),
        (0, 0x60) if width == 4 => Some(Op::LoadMemory(Register::A, slot()?)),
        (0, 0x80) if width == 4 => Some(Op::LoadLength(Register::A)),
        (1, 0x00) if width == 4 => Some(Op::LoadConstant(Register::X, k)),
        (1, 0x60) if width == 4 => Some(Op::LoadMemory(Register::X, slot()?)),
        (1, 0x80) if width == 4 => Some(Op::LoadLength(Register::X)),
        (1, 0xa0) if width == 1 => Some(Op::LoadHeaderLength(k)),
        (0 | 1, _) => None,
        _ => decode_other(code, jt, jf, k, operand, slot),
    }
}

fn decode_other(
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
    operand: Operand,
    slot: impl Fn() -> Option<usize>,
) -> Option<Op> {
    match code & 7 {
        2 if code == 2 => Some(Op::Store(Register::A, slot()?)),
        3 if code == 3 => Some(Op::Store(Register::X, slot()?)),
        4 => {
            let how = match code & 0xf0 {
                0x00 => Arithmetic::Add,
                0x10 => Arithmetic::Subtract,
                0x20 => Arithmetic::Multiply,
                0x30 => Arithmetic::Divide,
                0x40 => Arithmetic::Or,
                0x50 => Arithmetic::And,
                0x60 => Arithmetic::ShiftLeft,
                0x70 => Arithmetic::ShiftRight,
                0x80 if code == 0x84 => return Some(Op::Negate),
                0x90 => Arithmetic::Modulo,
                0xa0 => Arithmetic::Xor,
                _ => return None,
            };
            let by_constant = operand == Operand::K(k);
            match how {
                Arithmetic::Divide | Arithmetic::Modulo if by_constant && k == 0 => None,
                Arithmetic::ShiftLeft | Arithmetic::ShiftRight if by_constant && k > 31 => None,
                _ => Some(Op::Calculate(how, operand)),
            }
        }
        5 => {
            let condition = match code & 0xf0 {
                0x00 if code == 5 => return Some(Op::Jump(k as usize)),
                0x10 => Condition::Equal,
                0x20 => Condition::Greater,
                0x30 => Condition::GreaterOrEqual,
                0x40 => Condition::AnySet,
                _ => return None,
            };
            Some(Op::Branch(condition, operand, jt, jf))
        }
        6 if code == 0x06 => Some(Op::Return(Some(k))),
        6 if code == 0x16 => Some(Op::Return(None)),
        7 if code == 0x07 => Some(Op::ToX),
        7 if code == 0x87 => Some(Op::ToA),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(lines: &[(u16, u8, u8, u32)]) -> Vec<Instruction> {
        let each = lines.iter();
        each.map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k })
            .collect()
    }

    /// `tcpdump -dd 'tcp port 443 and ip'` of libpcap 1.10.
    fn tcp_443() -> Vec<Instruction> {
        program(&[
            (0x28, 0, 0, 0x0000000c),
            (0x15, 0, 10, 0x00000800),
            (0x30, 0, 0, 0x00000017),
            (0x15, 0, 8, 0x00000006),
            (0x28, 0, 0, 0x00000014),
            (0x45, 6, 0, 0x00001fff),
            (0xb1, 0, 0, 0x0000000e),
            (0x48, 0, 0, 0x0000000e),
            (0x15, 2, 0, 0x000001bb),
            (0x48, 0, 0, 0x00000010),
            (0x15, 0, 1, 0x000001bb),
            (0x06, 0, 0, 0x00040000),
            (0x06, 0, 0, 0x00000000),
        ])
    }

    #[test]
    fn libpcap_s_own_program_chooses_frames() {
        use crate::{Mac, build, parse::TcpFlags};
        let filter = Filter::new(&tcp_443()).unwrap();
        let frame = |sport, dport| {
            let frame = build::frame(Mac([2; 6]), Mac([4; 6])).ip([10, 0, 0, 1], [10, 0, 0, 2]);
            frame.tcp(sport, dport, TcpFlags::SYN).build()
        };
        for (sport, dport, wanted) in [(1, 443, true), (443, 1, true), (1, 2, false)] {
            let frame = frame(sport, dport);
            assert_eq!(filter.wants(&frame, frame.len()), Ok(wanted));
            // What it needs is not all there: in the frame, and beyond it.
            assert_eq!(filter.wants(&frame[..30], frame.len()), Err(NeedsMore));
            assert_eq!(filter.wants(&frame[..30], 30), Ok(false));
        }
        assert_eq!(filter.wants(&[], 0), Ok(false));
    }

    #[test]
    fn what_could_not_end_or_reads_elsewhere_is_refused() {
        let end = (0x06, 0, 0, 1);
        for (lines, why) in [
            (&[][..], FilterError::Length(0)),
            (&[(0x00, 0, 0, 1)][..], FilterError::End),
            (&[(0x05, 0, 0, 1), end][..], FilterError::Jump(0)),
            (&[(0x05, 0, 0, u32::MAX), end][..], FilterError::Jump(0)),
            (&[(0x15, 0, 1, 0), end][..], FilterError::Jump(0)),
            (&[(0x15, 255, 0, 0), end][..], FilterError::Jump(0)),
            (&[(0x60, 0, 0, 16), end][..], FilterError::Instruction(0)),
            (&[(0x02, 0, 0, 16), end][..], FilterError::Instruction(0)),
            (&[(0x34, 0, 0, 0), end][..], FilterError::Instruction(0)),
            (&[(0x94, 0, 0, 0), end][..], FilterError::Instruction(0)),
            (&[(0x64, 0, 0, 32), end][..], FilterError::Instruction(0)),
            (&[(0x18, 0, 0, 0), end][..], FilterError::Instruction(0)),
            (&[(0x1006, 0, 0, 0), end][..], FilterError::Instruction(0)),
            (&[(0x0e, 0, 0, 0)][..], FilterError::Instruction(0)),
        ] {
            assert_eq!(Filter::new(&program(lines)), Err(why), "{lines:?}");
        }
        let long = vec![(0x00, 0, 0, 0); INSTRUCTIONS_MAX + 1];
        let length = FilterError::Length(INSTRUCTIONS_MAX + 1);
        assert_eq!(Filter::new(&program(&long)), Err(length));
    }

    #[test]
    fn steps_are_counted_as_they_are_taken() {
        let counted = |lines: &[(u16, u8, u8, u32)], frame: &[u8]| {
            let mut steps = 7;
            let filter = Filter::new(&program(lines)).unwrap();
            let wants = filter.wants_counted(frame, 60, &mut steps);
            (wants, steps - 7)
        };
        let end = (0x06, 0, 0, 1);
        // What is jumped over is not counted, and a load that ends the program is.
        assert_eq!(counted(&[(0x05, 0, 0, 1), end, end], &[]), (Ok(true), 2));
        let late = [(0x00, 0, 0, 1), (0x30, 0, 0, 9), end];
        assert_eq!(counted(&late, &[0; 9]), (Err(NeedsMore), 2));
        assert_eq!(counted(&late, &[0; 60]), (Ok(true), 3));
        let divides = [(0x01, 0, 0, 3), (0x3c, 0, 0, 0), (0x9c, 0, 0, 0), end];
        assert_eq!(counted(&divides, &[]), (Ok(true), 2 + 2 * DIVISION_STEPS));
    }

    #[test]
    fn arithmetic_is_that_of_32_bits() {
        let run = |lines: &[(u16, u8, u8, u32)]| {
            let mut all = lines.to_vec();
            all.push((0x16, 0, 0, 0));
            Filter::new(&program(&all))
                .unwrap()
                .wants(&[1, 2, 3, 4, 5], 5)
                .unwrap()
        };
        assert!(run(&[(0x00, 0, 0, 1), (0x84, 0, 0, 0), (0x04, 0, 0, 2)])); // 1 - 2 + 2
        assert!(!run(&[(0x00, 0, 0, 1), (0x84, 0, 0, 0), (0x04, 0, 0, 1)]));
        assert!(!run(&[(0x00, 0, 0, 1), (0x01, 0, 0, 0), (0x3c, 0, 0, 0)])); // by X, which is 0
        assert!(!run(&[(0x00, 0, 0, 1), (0x01, 0, 0, 32), (0x6c, 0, 0, 0)]));
        assert!(run(&[(0x80, 0, 0, 0), (0x14, 0, 0, 4)])); // the length less 4
        assert!(run(&[(0x01, 0, 0, 7), (0x03, 0, 0, 15), (0x60, 0, 0, 15)]));
        assert!(!run(&[(0x01, 0, 0, u32::MAX), (0x50, 0, 0, 0)])); // far beyond
        assert!(run(&[(0x01, 0, 0, u32::MAX), (0x50, 0, 0, 1)])); // wraps to byte 0
    }
}
