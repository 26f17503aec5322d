"""Installs pip into the environment whose Python runs this, with nothing but Python.

Takes one version, whose checksum is below, from the package index ($PIP_INDEX_URL, or PyPI).
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import urlopen

WHEEL = "pip-25.3-py3-none-any.whl"
SHA256 = "9655943313a94722b7774661c21049070f6bbb0a1516bf02f7c8d5d9201514cd"


def main() -> None:
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    page = f"{index}/pip/"
    with urlopen(page, timeout=60) as answer:
        links = re.findall(r'href="([^"]+)"', answer.read().decode())
    address = next((link for link in links if WHEEL in link), None)
    if address is None:
        sys.exit(f"setup: {page} does not list {WHEEL}")
    with urlopen(urljoin(page, address), timeout=60) as answer:
        data = answer.read()
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit(f"setup: {WHEEL} from {index} does not have the expected checksum")
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder, WHEEL)
        wheel.write_bytes(data)
        # A wheel is a zip archive that Python can run modules from: pip installs itself.
        command = [sys.executable, f"{wheel}/pip", "install", "--quiet", "--no-index", str(wheel)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"setup: {error}")
