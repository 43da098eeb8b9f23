use super::*;

/// Columns of every type, and a row of them.
const COLUMNS: [(&str, Type, Value<'_>); 12] = [
    ("score", Type::Number, Value::Float(0.75)),
    ("count", Type::Number, Value::Integer(7)),
    ("big", Type::Number, Value::Integer(i64::MAX)),
    ("nan", Type::Number, Value::Float(f64::NAN)),
    ("split", Type::Text, Value::Text("train")),
    ("quote", Type::Text, Value::Text("it's")),
    ("good", Type::Boolean, Value::Boolean(true)),
    ("none", Type::Number, Value::Null),
    ("no_text", Type::Text, Value::Null),
    ("written", Type::Written, Value::Text("12")),
    ("absent", Type::Written, Value::Null),
    ("a b", Type::Text, Value::Text("spaced")),
];

fn condition(text: &str) -> Result<(Condition, Vec<Value<'static>>), Mistake> {
    let expression = Expression::parse(text)?;
    let find = |name: &String| COLUMNS.iter().find(|(known, ..)| known == name);
    let types: Vec<_> = expression.columns().iter().map(|name| Some(find(name)?.1)).collect();
    let row =
        expression.columns().iter().map(|name| find(name).map_or(Value::Null, |column| column.2));
    let row = row.collect();
    expression.with_columns(&types).map(|condition| (condition, row))
}

fn holds(text: &str) -> Option<bool> {
    let (condition, row) = condition(text).unwrap_or_else(|mistake| panic!("{text}: {mistake:?}"));
    condition.holds(&row).unwrap()
}

#[test]
fn conditions_have_the_value_of_sql() {
    let (yes, no, null) = (Some(true), Some(false), None);
    for (text, expected) in [
        ("score > 0.5 and split == 'train'", yes),
        ("score > 0.5 and split == 'val'", no),
        ("count == 7", yes),
        ("count == 7.0", yes),
        ("count != 7", no),
        ("count < 7.5 and count > 6.5 and count <= 7 and count >= 7", yes),
        ("-7 < count", yes),
        ("count > -1e-3", yes),
        ("count == 0_7", yes),
        ("count > .5", yes),
        // No float is this integer; as floats the two would be equal.
        ("big == 9223372036854775808.0", no),
        ("big < 9223372036854775808.0", yes),
        ("big > 9223372036854774784.0", yes),
        ("big > -1e300", yes),
        ("nan == nan", no),
        ("nan != nan", yes),
        ("nan < 1 or nan >= 1", no),
        ("nan is null", no),
        ("split < 'val'", yes),
        ("split in ('val', 'train')", yes),
        ("split not in ('val', 'train')", no),
        ("count in (1, 7.0)", yes),
        ("count between 7 and 8", yes),
        ("count not between 7 and 8", no),
        ("count between 8 and 7", no),
        ("split like 'tr%'", yes),
        ("split not like '_rain'", no),
        ("quote == 'it''s'", yes),
        ("\"a b\" == 'spaced'", yes),
        ("good", yes),
        ("not good", no),
        ("good == true", yes),
        ("good != (count == 7)", no),
        ("true", yes),
        ("NOT (good AND FALSE)", yes),
        ("not not good", yes),
        // Null: unknown.
        ("none == 1", null),
        ("none != 1", null),
        ("none < 1", null),
        ("not none == 1", null),
        ("none in (1, 2)", null),
        ("none not in (1, 2)", null),
        ("no_text like '%'", null),
        ("none is null", yes),
        ("none is not null", no),
        ("(none == 1) is null", yes),
        ("none == 1 and false", no),
        ("none == 1 and true", null),
        ("none == 1 or true", yes),
        ("none == 1 or false", null),
        ("none between 1 and 2", null),
        ("count between none and 8", null),
        ("count between none and 6", no),
        // What is written is what it is compared with.
        ("written == 12", yes),
        ("written == '12'", yes),
        ("written > 9", yes),
        ("written > '9'", no),
        ("written between 10 and 20", yes),
        ("written in (12)", yes),
        ("written == written", yes),
        ("written like '1_'", yes),
        ("absent", null),
        ("absent == 1", null),
        ("absent is null", yes),
        // `and` before `or`, `not` before both.
        ("true or true and false", yes),
        ("(true or true) and false", no),
        ("not false and false", no),
    ] {
        assert_eq!(holds(text), expected, "{text}");
    }
}

#[test]
fn mistakes_have_a_place_and_a_remedy() {
    for (text, wrong, part) in [
        ("", "", "empty"),
        ("scroe > 1", "scroe", "no column `scroe`"),
        ("score > 'a'", "score > 'a'", "a number and text"),
        ("score", "score", "compare it"),
        ("split and good", "split", "compare it"),
        ("good < true", "good < true", "booleans"),
        ("good between 1 and 2", "good between 1 and 2", "a boolean and a number"),
        ("count like '7'", "count", "for text"),
        ("split in ('a', 1)", "1", "text and a number"),
        ("split = 'a'", "=", "`==`"),
        ("count <> 7", "<>", "`!=`"),
        ("good && good", "&&", "`and`"),
        ("good | good", "|", "`or`"),
        ("!good", "!", "`not`"),
        ("split == 'train", "'train", "no end"),
        ("split == train'", "'", "no end"),
        ("none == null", "null", "`is null`"),
        ("split in ('a', null)", "null", "`is null`"),
        ("count between null and 3", "null", "`is null`"),
        ("split in 'a'", "'a'", "in parentheses"),
        ("split in ()", ")", "a number"),
        ("split in ('a' 'b')", "'b'", "`,` or `)`"),
        ("(good", "", "`)`"),
        ("good)", ")", "`and`"),
        ("good good", "good", "`and`"),
        ("good and", "", "it ends here"),
        ("and good", "and", "a column"),
        ("count not 7", "7", "`like`"),
        ("count is 7", "7", "`null`"),
        ("1 < count < 9", "<", "two sides"),
        ("count == 1_x", "1_x", "not a number"),
        ("count == 1e999", "1e999", "not a number"),
        ("count == 5 # five", "#", "single quotes"),
        ("split like count", "count", "a pattern"),
    ] {
        let mistake = condition(text).unwrap_err();
        assert_eq!(&text[mistake.span.clone()], wrong, "{text}: {mistake:?}");
        assert!(mistake.message.contains(part), "{text}: {}", mistake.message);
        let shown = mistake.pointed(text);
        assert_eq!(shown.lines().count(), 2, "{shown}");
        let (line, carets) = shown.split_once('\n').unwrap();
        let start = carets.chars().position(|place| place == '^').unwrap();
        let shown: String = line.chars().skip(start).take(wrong.chars().count()).collect();
        assert_eq!(shown, wrong);
    }
}

#[test]
fn text_that_is_not_of_the_type_is_a_fault_with_its_column() {
    let text = "count == 7 and written == true";
    let (condition, row) = condition(text).unwrap();
    let fault = condition.holds(&row).unwrap_err();
    assert_eq!((&text[fault.span], fault.column, fault.wanted), ("written", 1, Type::Boolean));
}

#[test]
fn hostile_texts_are_refused_or_evaluated() {
    let nested = |depth: usize| "(".repeat(depth) + "good" + &")".repeat(depth);
    assert_eq!(holds(&nested(MAX_DEPTH)), Some(true));
    assert!(condition(&nested(MAX_DEPTH + 1)).unwrap_err().message.contains("64"));
    assert!(condition(&("not ".repeat(10_000) + "good")).is_err());
    let between = "(".repeat(60) + "count" + &" between 1 and 2) == good".repeat(60);
    assert!(condition(&between).is_ok() || condition(&between).is_err());
    let many = vec!["count == 1"; 4000].join(" or ");
    assert_eq!(holds(&many), Some(false));
    let long = "good and ".repeat(MAX_BYTES);
    assert!(condition(&long).unwrap_err().message.contains("65536"));
    let wide = format!("split == '{}' und", "ä\u{1}".repeat(500));
    let mistake = condition(&wide).unwrap_err();
    assert!(mistake.pointed(&wide).len() < 500, "{}", mistake.pointed(&wide));
}
