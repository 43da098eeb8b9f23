"""A strict reader of Prometheus' text format 0.0.4, by promtool's rules: what it takes, every scraper takes."""

import math
import re

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


class Family:
    """A name with its kind and its samples by their labels, a sorted tuple of pairs."""

    def __init__(self, name, words):
        self.name, self.words, self.kind, self.samples = name, words, None, {}


def labels_of(text):
    pairs, place = [], 0
    while place < len(text or ""):
        match = LABEL.match(text, place)
        assert match, f"no label at {text[place:]!r}"
        value = match[2].replace("\\\\", "\0").replace('\\"', '"').replace("\\n", "\n").replace("\0", "\\")
        pairs.append((match[1], value))
        place = match.end()
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), f"a label stands twice: {text}"
    return tuple(sorted(pairs))


def parse(text):
    """Families by name. Fails on anything that is not as the format and good practice want it."""
    assert text.endswith("\n")
    families = {}
    family = None
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, words = line[7:].split(" ", 1)
            assert NAME.fullmatch(name) and name not in families, f"{name} stands twice"
            assert words.endswith("."), line
            family = families[name] = Family(name, words)
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert family and name == family.name and family.kind is None and not family.samples, line
            assert kind in SUFFIXES, line
            assert name.endswith("_total") == (kind == "counter"), line
            family.kind = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, f"no sample: {line!r}"
            assert family and family.kind and match[1].startswith(family.name), f"{line} stands outside of its family"
            suffix = match[1][len(family.name) :]
            assert suffix in SUFFIXES[family.kind], line
            key = (suffix, labels_of(match[2]))
            assert key not in family.samples, f"{line} stands twice"
            value = float(match[3])
            assert not math.isnan(value) and (value >= 0), line
            family.samples[key] = value
    for family in families.values():
        if family.kind == "histogram":
            check_histogram(family)
    return families


def check_histogram(family):
    series = {}
    for (suffix, labels), value in family.samples.items():
        rest = tuple(pair for pair in labels if pair[0] != "le")
        bound = float(dict(labels)["le"]) if suffix == "_bucket" else suffix
        series.setdefault(rest, {})[bound] = value
    for labels, values in series.items():
        buckets = sorted((bound, value) for bound, value in values.items() if isinstance(bound, float))
        assert buckets[-1] == (math.inf, values["_count"]), (family.name, labels)
        counts = [value for _, value in buckets]
        assert counts == sorted(counts), (family.name, labels, "a bucket holds less than the one before")
        assert "_sum" in values


def series(families, kinds):
    """Every value of these kinds by name and labels."""
    return {
        (family.name + suffix, labels): value
        for family in families.values()
        if family.kind in kinds
        for (suffix, labels), value in family.samples.items()
    }
