"""scripts/check-imports on crates made up for it."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("check-imports")
MANIFEST = '[package]\nname = "{name}"\nedition = "2024"\n[workspace]\n'


def check(folder, files):
    """What the script says of a package with these files below src, and its status."""
    (folder / "Cargo.toml").write_text(MANIFEST.format(name="made-up"))
    for name, text in files.items():
        file = folder / "src" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = subprocess.run([SCRIPT, folder], stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


def circles(output):
    """The files of each circle."""
    found = []
    for line in output.splitlines():
        if line.endswith("in a circle"):
            found.append(set())
        elif line.startswith("    src/"):
            found[-1].add(line.strip().removeprefix("src/"))
    return found


CIRCLES = {
    "two files by `use`": {
        "lib.rs": "mod a; mod b;",
        "a.rs": "use crate::b::B; pub struct A(B);",
        "b.rs": "use super::a::A; pub struct B(Box<A>);",
    },
    "by a path in code, through a group, an alias and a renamed item": {
        "lib.rs": "mod a; mod b;",
        "a.rs": "use crate::b as other; pub fn a() { other::deep() }",
        "b.rs": "use crate::{a::{self, a as renamed}}; pub fn deep() { renamed() }",
    },
    "a parent that uses its child": {
        "lib.rs": "mod a;",
        "a.rs": "mod b; pub struct A; fn f() { b::g() }",
        "a/b.rs": "use super::A; pub(super) fn g() -> A { A }",
    },
    "a parent that uses what it also passes on": {
        "lib.rs": "mod a;",
        "a.rs": "mod b; pub use b::B; pub struct A; fn f(_: B) {}",
        "a/b.rs": "pub struct B(super::A);",
    },
    "through globs": {
        "lib.rs": "mod a; mod b;",
        "a.rs": "mod inner; pub use inner::*; ",
        "a/inner.rs": "use crate::b::*; pub struct Inner(Deep);",
        "b.rs": "use crate::a::Inner; pub struct Deep(Box<Inner>);",
    },
    "in a block, under a path attribute and an inline module": {
        "lib.rs": 'mod a; #[path = "elsewhere.rs"] mod b;',
        "a.rs": "pub mod inline { pub fn f() { use crate::b::g; g() } }",
        "elsewhere.rs": "pub fn g() { crate::a::inline::f() }",
    },
}
NO_CIRCLES = {
    "a parent that declares and passes on": {
        "lib.rs": "mod a;",
        "a.rs": "mod b; mod c; pub use b::B; pub(crate) use c::*; pub struct A;",
        "a/b.rs": "use super::{A, C}; pub struct B(A, C);",
        "a/c.rs": "pub struct C;",
    },
    "tests, comments, strings and characters": {
        "lib.rs": "mod a; mod b;",
        "a.rs": "use crate::b::B; pub struct A(B, char); fn f() { let _ = 'x'; let _ = b'\"'; }",
        "b.rs": (
            '// crate::a::A\n/* crate::a::A /* nested */ */ pub struct B; const T: &str = r#"crate::a::A " \\"#;\n'
            "fn f<'a>(x: &'a B) -> &'a str { \"\\\" crate::a::A\" }\n"
            "impl B { #[cfg(test)] pub fn test<X, Y>() -> crate::a::A { unreachable!() } }\n"
            "struct D { #[cfg(test)] a: crate::a::A, b: u8 }\n"
            "#[cfg(test)] use crate::a::A;\n#[cfg(all(test, unix))] #[allow(unused)] mod tests { use crate::a::A; }\n"
            "#[cfg(test)] mod more;"
        ),
        "b/more.rs": "use crate::a::A; fn f(_: A) {}",
    },
    "a name of another crate that a module brings in": {
        "lib.rs": "mod a; mod b;",
        "a.rs": "use crate::b::f; use std::sync::Arc; pub struct A(Arc<u8>);",
        "b.rs": "use crate::a::Arc; pub fn f(_: Arc<u8>) {}",
    },
    "methods and fields that are called as a passed on function": {
        "lib.rs": "mod a;",
        "a.rs": "mod b; pub use b::run; pub struct A { run: u8 } fn f(a: &A) { a.run; a.run() }",
        "a/b.rs": "pub fn run(_: super::A) {}",
    },
}


@pytest.mark.parametrize("about", CIRCLES)
def test_a_circle_is_refused_with_its_files(tmp_path, about):
    files = CIRCLES[about]
    status, output = check(tmp_path, files)
    in_circle = set(files) - {"lib.rs"} - ({"a.rs"} if about == "through globs" else set())
    assert (status, circles(output)) == (1, [in_circle]), output


@pytest.mark.parametrize("about", NO_CIRCLES)
def test_what_is_no_circle_passes(tmp_path, about):
    assert check(tmp_path, NO_CIRCLES[about]) == (0, "")


def test_a_layer_must_not_depend_on_one_above_it(tmp_path):
    (tmp_path / "Cargo.toml").write_text('[workspace]\nmembers = ["protocol", "client-lib"]\n')
    needs = {"protocol": 'client = { path = "../client-lib" }', "client-lib": ""}
    for folder, dependencies in needs.items():
        (tmp_path / folder / "src").mkdir(parents=True)
        (tmp_path / folder / "src" / "lib.rs").touch()
        name = "client" if folder == "client-lib" else folder
        text = f'[package]\nname = "{name}"\nedition = "2024"\n[dependencies]\n{dependencies}\n'
        (tmp_path / folder / "Cargo.toml").write_text(text)
    done = subprocess.run([SCRIPT, tmp_path], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "protocol (protocol) must not depend on client (client-lib)\n")
