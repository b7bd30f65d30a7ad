"""The numpy example of the README runs."""

import pathlib
import re


def test_example():
    text = (pathlib.Path(__file__).parents[1] / 'README.md').read_text()
    blocks = re.findall(r'^```python\n(.*?)^```', text, re.S | re.M)
    assert len(blocks) == 1
    names = {}
    exec(compile(blocks[0], 'README.md', 'exec'), names)
    assert names['np'].isfinite(names['out']).all() and names['states'][3].any() and not names['states'][4:].any()
