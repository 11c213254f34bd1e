"""The figures folder: a copy to draw into, and the comparison of such a copy with the committed figures."""

import re
import shutil
from pathlib import Path

from tools.notebooks import ROOT

FIGURES = ROOT / "figures"
INPUTS = ("data", "book_results.csv", "claims.csv")  # what notebooks read from the folder that they draw into
GIVEN = (*INPUTS, "sources.csv", "restamps.csv", "weights")  # all else in the folder is made by notebooks
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
HASHED = re.compile(r'(?<=["#])[a-z]{0,3}[0-9a-f]{10}\b')  # matplotlib's ids, hashes of unrounded numbers


def stage(folder: Path, figures: Path = FIGURES) -> Path:
    """Make `folder` a figures folder with the inputs alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in INPUTS:
        if (figures / name).is_dir():
            shutil.copytree(figures / name, folder / name, dirs_exist_ok=True)
        elif (figures / name).exists():
            shutil.copy(figures / name, folder / name)
    return folder


def made(figures: Path = FIGURES) -> dict[str, Path]:
    """The files in a figures folder that notebooks made, by their name inside it."""
    files = [path for path in sorted(figures.rglob("*")) if path.is_file()]
    found = {path.relative_to(figures).as_posix(): path for path in files}
    ours = [name for name in found if name.split("/")[0] not in GIVEN and "/." not in f"/{name}"]
    return {name: found[name] for name in ours}


def same_svg(one: str, other: str, tolerance: float = 0.1) -> bool:
    """Whether two SVG texts differ by no more than `tolerance` in their decimal numbers."""
    texts = []
    for text in (one, other):
        ids = {name: f"id{place}" for place, name in enumerate(dict.fromkeys(HASHED.findall(text)))}
        texts.append(HASHED.sub(lambda match, ids=ids: ids[match[0]], text))
    if NUMBER.sub("#", texts[0]) != NUMBER.sub("#", texts[1]):
        return False
    numbers = [map(float, NUMBER.findall(text)) for text in texts]
    return all(abs(a - b) <= tolerance for a, b in zip(*numbers, strict=True))


def same_file(one: Path, other: Path) -> bool:
    """Equal tables to the letter, equal pictures to the eye."""
    if one.read_bytes() == other.read_bytes():
        return True
    if one.suffix == ".svg":
        return same_svg(one.read_text(encoding="utf-8"), other.read_text(encoding="utf-8"))
    if one.suffix == ".png":
        from matplotlib.testing.compare import compare_images

        return compare_images(str(one), str(other), tol=2) is None
    return False


def differences(committed: Path, remade: Path) -> list[str]:
    """What is missing, extra or different when figures are made again."""
    old, new = made(committed), made(remade)
    found = [f"{name}: committed, but no notebook makes it" for name in old.keys() - new.keys()]
    found += [f"{name}: made by a notebook, but not committed" for name in new.keys() - old.keys()]
    both = old.keys() & new.keys()
    found += [f"{name}: differs from the committed file" for name in both if not same_file(old[name], new[name])]
    return sorted(found)
