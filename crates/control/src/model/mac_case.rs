//! How the letters of a MAC address were written. v0's clients compare what they get back with what
//! they gave.

use wire::Mac;

/// A bit for each of the 12 digits, the first the highest: set where a letter was in upper case.
/// Default: all in lower.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MacCase(u16);

impl MacCase {
    /// The case that a MAC's text is written in.
    pub fn of(text: &str) -> MacCase {
        let digits = text.bytes().filter(|byte| *byte != b':').take(12);
        let bit = |bits, byte: u8| bits << 1 | u16::from(byte.is_ascii_uppercase());
        MacCase(digits.fold(0, bit))
    }

    /// The text of the same MAC in this case.
    pub fn write(self, mac: Mac) -> String {
        let mut text = mac.to_string();
        if self.0 == 0 {
            return text;
        }
        let mut bits = self.0 << 4;
        text = text
            .chars()
            .map(|digit| {
                if digit == ':' {
                    return digit;
                }
                let upper = bits & 0x8000 != 0;
                bits <<= 1;
                if upper {
                    digit.to_ascii_uppercase()
                } else {
                    digit
                }
            })
            .collect();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_is_given_back_as_it_was_written() {
        for text in [
            "52:54:00:12:34:0a",
            "52:54:00:12:34:0A",
            "AA:bB:Cc:dd:EE:fF",
            "aA:00:00:00:00:00",
            "FF:FF:FF:FF:FF:FF",
        ] {
            let mac: Mac = text.parse().unwrap();
            assert_eq!(MacCase::of(text).write(mac), text);
        }
    }
}
