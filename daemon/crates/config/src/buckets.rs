//! `batch.buckets`: the shapes of batches of pictures, as a list or made from an area.

use forebay_keys::{ConfigError, Json, Kind as _, Located, Section, Value, json, kinds};

use crate::model::{BatchConfig, Last};

/// The most buckets, as the protocol has room for the shapes of a field.
const MOST_BUCKETS: usize = 256;
/// The longest side.
const MOST_SIDE: u32 = 65_535;
/// The default of `step`.
const STEP: u32 = 64;

/// A shape of batches, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket {
    /// From top to bottom.
    pub height: u32,
    /// From left to right.
    pub width: u32,
}

impl std::fmt::Display for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.height, self.width)
    }
}

const EXPECTED: &str = "a list of 1 to 256 different shapes [height, width], such as [[1024, 1024], [832, 1216]], or a table \
                        such as { pixels = 1048576, step = 64, sides = [512, 2048] }, whose sides are multiples of the step";

fn side(value: &Value) -> Option<u32> {
    u32::read(value).filter(|side| (1..=MOST_SIDE).contains(side))
}

fn pair(value: &Value) -> Option<(u32, u32)> {
    let Value::Array(items) = value else { return None };
    let [first, second] = &items[..] else { return None };
    Some((side(&first.value)?, side(&second.value)?))
}

fn listed(items: &[Located]) -> Option<Vec<Bucket>> {
    let bucket = |item: &Located| pair(&item.value).map(|(height, width)| Bucket { height, width });
    items.iter().map(bucket).collect()
}

/// The shapes of about this area: for each width from the least to the greatest side the greatest height within the area,
/// the same turned, and the greatest square; all sides are multiples of the step. As kohya's sd-scripts make them.
fn of_area(pixels: u64, step: u32, (least, most): (u32, u32)) -> Vec<Bucket> {
    let down = |side: u64| {
        let side = u32::try_from(side).unwrap_or(u32::MAX);
        side / step * step
    };
    let square = down(pixels.isqrt());
    let mut buckets = vec![Bucket { height: square, width: square }];
    for width in (least..=most).step_by(step as usize) {
        let height = down(pixels / u64::from(width)).min(most);
        if height >= least {
            buckets.extend(
                [(height, width), (width, height)].map(|(height, width)| Bucket { height, width }),
            );
        }
    }
    buckets.retain(|bucket| (1..=MOST_SIDE).contains(&bucket.height));
    buckets.sort_unstable();
    buckets.dedup();
    buckets
}

/// The shapes of a table.
fn made(entries: &[(String, Located)]) -> Option<Vec<Bucket>> {
    let (mut pixels, mut step, mut sides) = (None, STEP, None);
    for (key, Located { value, .. }) in entries {
        match key.as_str() {
            "pixels" => pixels = Some(u64::read(value).filter(|pixels| *pixels > 0)?),
            "step" => step = side(value)?,
            "sides" => sides = Some(pair(value)?),
            _ => return None,
        }
    }
    let pixels = pixels?;
    let root = u32::try_from(pixels.isqrt()).ok()?;
    let down = |side: u32| side / step * step;
    let (least, most) = sides
        .unwrap_or_else(|| (down(root / 2).max(step), down(root.saturating_mul(2).min(MOST_SIDE))));
    let is_whole = least % step == 0 && most % step == 0;
    (is_whole && least <= most && most / step <= 1024).then(|| of_area(pixels, step, (least, most)))
}

fn sides_schema() -> Json {
    let side = json!({ "type": "integer", "minimum": 1, "maximum": MOST_SIDE });
    json!({ "type": "array", "items": side, "minItems": 2, "maxItems": 2 })
}

kinds! {
    /// The shapes of batches.
    [pub] Buckets as Vec<Bucket>: EXPECTED, type "`[[height, width], …]`, or { pixels = …, step = …, sides = […, …] }";
    read(value) {
        let buckets = match value {
            Value::Array(items) => listed(items)?,
            Value::Table(entries) => made(entries)?,
            _ => return None,
        };
        let mut different = buckets.clone();
        different.sort_unstable();
        different.dedup();
        let fits = (1..=MOST_BUCKETS).contains(&buckets.len()) && different.len() == buckets.len();
        fits.then_some(buckets)
    }
    write(out) {
        let shape = |bucket: &Bucket| {
            let sides = [bucket.height, bucket.width].map(|side| Located::from(Value::Integer(side.into())));
            Located::from(Value::Array(sides.to_vec()))
        };
        Value::Array(out.iter().map(shape).collect())
    }
    schema { "anyOf": [
        { "type": "array", "items": (sides_schema()), "minItems": 1, "maxItems": MOST_BUCKETS, "uniqueItems": true },
        { "type": "object", "additionalProperties": false, "required": ["pixels"], "properties": {
            "pixels": { "type": "integer", "minimum": 1 },
            "step": { "type": "integer", "minimum": 1, "maximum": MOST_SIDE },
            "sides": (sides_schema())
        } }
    ] }
}

/// The checks of `[batch]` with `buckets`, or without them.
pub(crate) fn check(batch: &BatchConfig, section: &Section) -> Result<(), ConfigError> {
    let is_given = |key: &str| section.location_of(key).is_some();
    let fail = |key: &str, message: &str| Err(section.error_at(key, message.to_owned()));
    if batch.buckets.is_none() {
        return match is_given("shape") {
            true => {
                fail("shape", "`batch.shape` has no effect without `batch.buckets`; leave it out")
            }
            false => Ok(()),
        };
    }
    if batch.budget.is_some() {
        return fail(
            "buckets",
            "`batch.buckets` cannot be combined with `batch.budget`: batches have one shape or one cost; leave one of them out",
        );
    }
    if batch.last == Last::Short {
        return fail(
            "last",
            "`batch.last` cannot be \"short\" with `batch.buckets`: what is left of a shape gives shorter batches to all \
             ranks, and samples that are left over are fewer than ranks; set it to \"drop\", or to \"pad\" to repeat some of \
             them",
        );
    }
    if !batch.operations.is_empty() {
        return fail(
            "operations",
            "`batch.operations` cannot be combined with `batch.buckets`: they need batches of one shape; leave one of them out",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::testing::read;

    fn batch(keys: &str) -> Result<Config, String> {
        let head = "dataset = { path = \"x\", format = \"npy\" }\nstage = [{ name = \"copy\", operations = [] }]\n";
        read(&format!("{head}{keys}\n")).map_err(|error| error.to_string())
    }

    fn buckets(value: &str) -> Vec<(u32, u32)> {
        let config = batch(&format!("batch = {{ size = 4, buckets = {value} }}")).unwrap();
        let again = Config::from_resolved("x", "x.toml", &config.resolved_toml()).unwrap();
        assert_eq!(again.batch, config.batch);
        let buckets = config.batch.buckets.unwrap();
        buckets.iter().map(|bucket| (bucket.height, bucket.width)).collect()
    }

    #[test]
    fn an_area_gives_the_shapes_of_kohyas_scripts() {
        // `make_bucket_resolutions((512, 512), 256, 1024, 64)` of sd-scripts' library/model_util.py, which are (width, height).
        let expected = [
            (256, 832),
            (256, 896),
            (256, 960),
            (256, 1024),
            (320, 704),
            (320, 768),
            (384, 640),
            (448, 576),
            (512, 512),
            (576, 448),
            (640, 384),
            (704, 320),
            (768, 320),
            (832, 256),
            (896, 256),
            (960, 256),
            (1024, 256),
        ];
        assert_eq!(buckets("{ pixels = 262_144, sides = [256, 1024] }"), expected);
        // A square beyond the sides is kept, as there.
        assert_eq!(buckets("{ pixels = 4096, step = 8, sides = [32, 32] }"), [(32, 32), (64, 64)]);
        let of_default = buckets("{ pixels = 1_048_576 }");
        assert_eq!((of_default[0], of_default.len()), ((512, 1856), 33));
        assert!(of_default.contains(&(832, 1216)) && of_default.contains(&(512, 2048)));
        assert_eq!(buckets("[[3, 5], [5, 3]]"), [(3, 5), (5, 3)]);
    }

    #[test]
    fn mistakes_name_the_key_and_the_remedy() {
        for (keys, expected) in [
            (
                "size = 4, buckets = []",
                "`batch.buckets` must be a list of 1 to 256 different shapes",
            ),
            ("size = 4, buckets = [[4, 4], [4, 4]]", "`batch.buckets` must be"),
            ("size = 4, buckets = [[4, 0]]", "`batch.buckets` must be"),
            ("size = 4, buckets = { step = 64 }", "`batch.buckets` must be"),
            ("size = 4, buckets = { pixels = 4096, sides = [30, 64] }", "`batch.buckets` must be"),
            ("size = 4, buckets = { pixels = 9e9 }", "`batch.buckets` must be"),
            (
                "size = 4, buckets = { pixels = 9_223_372_036_854_775_807 }",
                "`batch.buckets` must be",
            ),
            ("size = 4, buckets = { pixels = 10, step = 64 }", "`batch.buckets` must be"),
            ("buckets = [[4, 4]]", "`batch.size` is required"),
            ("size = 4, shape = \"image\"", ":3: `batch.shape` has no effect without"),
            (
                "budget = { pixels = 5 }, max_rows = 4, buckets = [[4, 4]]",
                "`batch.buckets` cannot be combined with `batch.budget`",
            ),
            ("size = 4, buckets = [[4, 4]], last = \"short\"", "`batch.last` cannot be \"short\""),
            ("size = 4, buckets = [[4, 4]], max_rows = 4", "`batch.max_rows` has no effect"),
            (
                "size = 4, buckets = [[4, 4]], operations = [{ op = \"mixup\", alpha = 0.2 }]",
                "`batch.operations` cannot be combined with `batch.buckets`",
            ),
        ] {
            let error = batch(&format!("batch = {{ {keys} }}")).unwrap_err();
            assert!(error.contains(expected), "{keys}\n{error}\n{expected}");
        }
        let error = batch("batch = { size = 4, buckets = [[4, 4]] }\norder.shuffle = \"blocks\"")
            .unwrap_err();
        assert!(error.contains("cannot be combined with `batch.buckets`"), "{error}");
        assert_eq!(
            batch("batch = { size = 4, buckets = [[4, 4]] }\norder.pool = 9").unwrap().pool(),
            9
        );
    }
}
