"""Writes `cases.txt`: masks as pycocotools decodes them. Run: python make_cases.py > cases.txt

A line has width and height, then polygons (x,y,...; several of one object by `|`), then the lengths of runs down the
columns, outside and inside by turns.
"""

import random

import numpy
from pycocotools import mask

generator = random.Random(7)


def coordinate(side):
    kind = generator.randrange(4)
    if kind == 0:
        return float(generator.randrange(side + 1))
    if kind == 1:
        return round(generator.uniform(0, side), 2)
    if kind == 2:
        return round(generator.uniform(-3, side + 3), 1)
    return generator.choice([0, side, side - 0.5, 0.5, 0.3, 0.7])


for number in range(60):
    width, height = generator.randrange(1, 24), generator.randrange(1, 24)
    polygons = []
    for _ in range(generator.choice([1, 1, 1, 2])):
        corners = generator.choice([3, 3, 4, 5, 9])
        polygon = [v for _ in range(corners) for v in (coordinate(width), coordinate(height))]
        if number % 9 == 0:
            polygon += polygon[:2]
        polygons.append(polygon)
    decoded = mask.decode(mask.merge(mask.frPyObjects(polygons, height, width)))
    flat = numpy.concatenate([[0], decoded.flatten(order="F"), [2]])
    edges = numpy.flatnonzero(numpy.diff(flat))
    ends = [0, *edges.tolist()]
    runs = [after - before for before, after in zip(ends, ends[1:])]
    print(width, height, "|".join(",".join(map(repr, polygon)) for polygon in polygons), ",".join(map(str, runs)))
