//! A rule of nftables as the kernel keeps it: expressions over registers
//! (linux/netfilter/nf_tables.h). Those that filter by a packet's own fields are read; all others
//! are [`Expression::Other`].

use crate::message::Attribute;
use crate::uapi::*;

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expression {
    /// Loads what is known beside the packet.
    Meta {
        /// `enum nft_meta_keys`.
        key: u32,
        /// Where to.
        register: u32,
    },
    /// Loads bytes of the packet.
    Payload {
        /// `enum nft_payload_bases`.
        base: u32,
        /// Of the first byte in that header.
        offset: u32,
        /// Bytes.
        len: u32,
        /// Where to.
        register: u32,
    },
    /// Keeps some bits, and turns some over.
    Bitwise {
        /// Where from.
        from: u32,
        /// Where to.
        to: u32,
        /// Bits that are kept.
        mask: Vec<u8>,
        /// Bits that are turned over.
        xor: Vec<u8>,
    },
    /// Goes on only if this holds.
    Compare {
        /// What is compared.
        register: u32,
        /// `enum nft_cmp_ops`.
        operator: u32,
        /// With what.
        value: Vec<u8>,
    },
    /// Counts.
    Counter,
    /// Ends with a verdict: 0 drop, 1 accept, less: `enum nft_verdicts`.
    Verdict(i32),
    /// Anything else, by its name.
    Other(String),
}

/// The expressions of a rule.
pub(crate) fn expressions(all: &Attribute) -> Vec<Expression> {
    all.nested().map(|one| expression(&one)).collect()
}

fn expression(one: &Attribute) -> Expression {
    let name = find(one, NFTA_EXPR_NAME)
        .map(|name| name.text())
        .unwrap_or_default();
    let data = find(one, NFTA_EXPR_DATA);
    let known = data.and_then(|data| known(&name, &data));
    known.unwrap_or(Expression::Other(name))
}

/// What is asked for beyond what is read here makes it another expression.
fn known(name: &str, data: &Attribute) -> Option<Expression> {
    let number = |kind| find(data, kind).and_then(|found| found.u32_be());
    let value = |kind| {
        let found = find(&find(data, kind)?, NFTA_DATA_VALUE)?;
        Some(found.value.to_vec())
    };
    match name {
        // DREG, KEY.
        "meta" => Some(Expression::Meta {
            register: number(1)?,
            key: number(2)?,
        }),
        // DREG, BASE, OFFSET, LEN; one that writes has no DREG.
        "payload" => Some(Expression::Payload {
            register: number(1)?,
            base: number(2)?,
            offset: number(3)?,
            len: number(4)?,
        }),
        // SREG, DREG, MASK, XOR; other operations than masks say so in OP.
        "bitwise" if number(6).unwrap_or(0) == 0 => Some(Expression::Bitwise {
            from: number(1)?,
            to: number(2)?,
            mask: value(4)?,
            xor: value(5)?,
        }),
        // SREG, OP, DATA.
        "cmp" => Some(Expression::Compare {
            register: number(1)?,
            operator: number(2)?,
            value: value(3)?,
        }),
        "counter" => Some(Expression::Counter),
        // DREG 0 is the verdict; DATA.
        "immediate" if number(1) == Some(0) => {
            let verdict = find(&find(data, 2)?, NFTA_DATA_VERDICT)?;
            let code = find(&verdict, NFTA_VERDICT_CODE)?.u32_be()?;
            Some(Expression::Verdict(code as i32))
        }
        _ => None,
    }
}

fn find<'a>(within: &Attribute<'a>, kind: u16) -> Option<Attribute<'a>> {
    within.nested().find(|attribute| attribute.kind == kind)
}
