"""Recipes in plain text, one file per chapter, to learn to spell from."""

import os
import random

DISHES = ["soup", "stew", "pie", "salad", "curry", "porridge", "omelette", "risotto"]
THINGS = ["onions", "carrots", "lentils", "potatoes", "mushrooms", "tomatoes", "leeks", "beans", "peppers"]
LIQUIDS = ["water", "milk", "stock", "cream", "cider"]
VERBS = ["Chop", "Wash", "Peel", "Roast", "Fry", "Steam"]


def make_recipe(rng):
    a, b = rng.sample(THINGS, 2)
    lines = ["%s and %s %s" % (a.capitalize(), b, rng.choice(DISHES)), ""]
    for thing in (a, b):
        lines.append("%s %d %s." % (rng.choice(VERBS), rng.randint(2, 12), thing))
    lines.append("Add %d ml of %s and wait %d minutes." % (rng.randint(1, 9) * 100, rng.choice(LIQUIDS), rng.randint(5, 60)))
    lines.append("Serve hot." if rng.random() < 0.7 else "Serve cold.")
    return "\n".join(lines) + "\n\n"


def write_recipes(folder, chapters, recipes):
    """Write the chapters that are not there yet; returns the names of all of them in order."""
    os.makedirs(folder, exist_ok=True)
    names = [os.path.join(folder, "chapter_%03d_of_%d_recipes.txt" % (i, recipes)) for i in range(chapters)]
    for i, name in enumerate(names):
        if not os.path.exists(name):
            rng = random.Random(i)
            with open(name, "w") as f:
                f.write("".join(make_recipe(rng) for _ in range(recipes)))
    return names
