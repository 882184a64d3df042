"""`make screenshots`: every screen at 1280 and 400 pixels, light and dark, in build/screenshots/.

`make screenshots SCREENS="key run"` captures the screens whose names have one of these words.
"""

import re
import sys
import tempfile
from pathlib import Path
from typing import Literal

from tests.page.chromium import Visit, chromium
from tests.page.scene import served_scene
from tests.page.test_screens import SCREENS

FOLDER = Path(__file__).parents[2] / "build/screenshots"
WIDTHS = (1280, 400)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def main(words: list[str]) -> None:
    """Capture the screens whose names have one of the words, or all of them."""
    chosen = {
        name: route
        for name, route in SCREENS.items()
        if not words or any(each in name for each in words)
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as place,
        chromium() as browser,
        served_scene(Path(place)) as shop,
    ):
        for width in WIDTHS:
            context = browser.new_context(
                reduced_motion="reduce", viewport={"width": width, "height": 800}
            )
            seen = Visit(context, shop.url, shop.tokens["admin"]).enter()
            for name, route in chosen.items():
                seen.open(route)
                seen.page.wait_for_timeout(2500 if name == "overview" else 300)
                for scheme in SCHEMES:
                    seen.page.emulate_media(color_scheme=scheme)
                    file = FOLDER / f"{re.sub('[^a-z]+', '-', name)}-{width}-{scheme}.png"
                    seen.page.screenshot(path=file, full_page=True)
            context.close()
    print(f"{len(list(FOLDER.glob('*.png')))} files in {FOLDER}")


if __name__ == "__main__":
    main(sys.argv[1:])
