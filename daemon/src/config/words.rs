//! The values that are one word of a few, and the other small types of single keys.

use forebay_protocol::tensor::DType;

use super::model::{
    BadSampleBudget, Concurrency, Confinement, CpuPolicy, FinishedOn, ImageLayout, Last,
    MetricsFrom, OnBadSample,
};
use super::section::FromValue;
use super::value::Value;
use std::num::NonZeroU32;

/// A type whose values each have one word in the configuration.
macro_rules! words {
    ($type:ty, $expected:literal, $($word:literal => $value:path),+) => {
        impl FromValue for $type {
            const EXPECTED: &'static str = $expected;
            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    Value::String(word) => match word.as_str() {
                        $($word => Some($value),)+
                        _ => None,
                    },
                    _ => None,
                }
            }
        }

        impl $type {
            /// The word that the configuration has for it.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $($value => $word,)+
                }
            }
        }
    };
}

words!(Last, "\"drop\", \"short\" or \"pad\"",
    "drop" => Last::Drop, "short" => Last::Short, "pad" => Last::Pad);
words!(OnBadSample, "\"fail\" or \"substitute\"",
    "fail" => OnBadSample::Fail, "substitute" => OnBadSample::Substitute);
words!(CpuPolicy, "\"idle\", \"batch\" or \"normal\"",
    "idle" => CpuPolicy::Idle, "batch" => CpuPolicy::Batch, "normal" => CpuPolicy::Normal);
words!(Confinement, "\"auto\", \"strict\" or \"off\"",
    "auto" => Confinement::Auto, "strict" => Confinement::Strict, "off" => Confinement::Off);
words!(MetricsFrom, "\"loopback\" or \"anywhere\"",
    "loopback" => MetricsFrom::Loopback, "anywhere" => MetricsFrom::Anywhere);
words!(ImageLayout, "\"NCHW\" or \"NHWC\"",
    "NCHW" => ImageLayout::Nchw, "NHWC" => ImageLayout::Nhwc);
words!(FinishedOn, "\"cpu\" or \"gpu\"",
    "cpu" => FinishedOn::Cpu, "gpu" => FinishedOn::Gpu);

impl FromValue for DType {
    const EXPECTED: &'static str = "a type: uint8, int8, uint16, int16, int32, int64, uint32, uint64, float16, bfloat16, float32, float64 or bool";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(name) => Self::from_name(name),
            _ => None,
        }
    }
}

impl FromValue for Concurrency {
    const EXPECTED: &'static str = "\"auto\" or a number of threads from 1";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(word) if word == "auto" => Some(Self::Auto),
            _ => NonZeroU32::from_value(value).map(Self::Threads),
        }
    }
}

impl FromValue for BadSampleBudget {
    const EXPECTED: &'static str =
        "a share of the epoch's samples such as \"0.1%\" (0% to 100%), or a count";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => {
                let percent: f64 = text.trim().strip_suffix('%')?.trim_end().parse().ok()?;
                (0.0..=100.0).contains(&percent).then_some(Self::Share(percent / 100.0))
            }
            _ => u64::from_value(value).map(Self::Count),
        }
    }
}

/// A percentage above 0 as a share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CpuLimit(pub(super) f64);

impl FromValue for CpuLimit {
    const EXPECTED: &'static str =
        "a percentage of the allowed cores such as \"40%\" (above 0%, at most 100%)";
    fn from_value(value: &Value) -> Option<Self> {
        let Value::String(text) = value else {
            return None;
        };
        let percent: f64 = text.trim().strip_suffix('%')?.trim_end().parse().ok()?;
        (percent > 0.0 && percent <= 100.0).then_some(Self(percent / 100.0))
    }
}

/// A whole number from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AtLeastOne(pub(super) u64);

impl FromValue for AtLeastOne {
    const EXPECTED: &'static str = "a whole number from 1";
    fn from_value(value: &Value) -> Option<Self> {
        u64::from_value(value).filter(|n| *n > 0).map(Self)
    }
}

/// `nice` as it can be set without privilege.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Niceness(pub(super) u8);

impl FromValue for Niceness {
    const EXPECTED: &'static str = "a whole number from 0 to 19";
    fn from_value(value: &Value) -> Option<Self> {
        let number = u64::from_value(value).filter(|n| *n <= 19)?;
        u8::try_from(number).ok().map(Self)
    }
}

/// The most cores that a list may name: Linux' own limit on x86-64 is 8,192.
const MAX_CORE: u32 = 8_191;

/// `"auto"` (`None`), or cores such as `"8-15"` or `"0,2,4-7"`, sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cores(pub(super) Option<Vec<u32>>);

impl FromValue for Cores {
    const EXPECTED: &'static str = "\"auto\", or cores such as \"8-15\" or \"0,2,4-7\", each once";
    fn from_value(value: &Value) -> Option<Self> {
        let Value::String(text) = value else {
            return None;
        };
        if text == "auto" {
            return Some(Self(None));
        }
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u32 = first.trim().parse().ok()?;
            let last: u32 = last.trim().parse().ok()?;
            if first > last || last > MAX_CORE {
                return None;
            }
            cores.extend(first..=last);
        }
        cores.sort_unstable();
        cores.windows(2).all(|pair| pair[0] != pair[1]).then_some(Self(Some(cores)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::String(text.to_owned())
    }

    #[test]
    fn words_are_read_and_written_alike() {
        for last in [Last::Drop, Last::Short, Last::Pad] {
            assert_eq!(Last::from_value(&text(last.word())), Some(last));
        }
        assert_eq!(Last::from_value(&text("Drop")), None);
        for dtype in DType::ALL {
            assert!(DType::EXPECTED.contains(dtype.name()), "{}", dtype.name());
        }
    }

    #[test]
    fn budgets_are_shares_or_counts() {
        let budget = BadSampleBudget::from_value;
        assert_eq!(budget(&text("50%")), Some(BadSampleBudget::Share(0.5)));
        assert_eq!(budget(&Value::Integer(3)), Some(BadSampleBudget::Count(3)));
        for wrong in
            [text("101%"), text("0.1"), text("nan%"), Value::Float(0.1), Value::Integer(-1)]
        {
            assert_eq!(budget(&wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_limit_is_a_percentage_above_nothing() {
        assert_eq!(CpuLimit::from_value(&text("40%")), Some(CpuLimit(0.4)));
        assert_eq!(CpuLimit::from_value(&text("12.5 %")), Some(CpuLimit(0.125)));
        for wrong in [text("0%"), text("101%"), text("nan%"), text("40"), Value::Float(0.4)] {
            assert_eq!(CpuLimit::from_value(&wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn cores_are_listed_once_each() {
        let cores = |written| Cores::from_value(&text(written)).map(|cores| cores.0);
        assert_eq!(cores("auto"), Some(None));
        assert_eq!(cores("4-6, 0"), Some(Some(vec![0, 4, 5, 6])));
        for wrong in ["", "a", "5-4", "1,1", "0-4,3", "-1", "0-99999999"] {
            assert_eq!(cores(wrong), None, "{wrong}");
        }
    }
}
