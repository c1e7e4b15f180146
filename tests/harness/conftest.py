"""A fixture that tests of the harness share: the texts of figures."""

import pytest


@pytest.fixture(scope="session")
def texts_of():
    """A function that returns each text of a figure by its file, for figures that are saved from now on."""
    from matplotlib.text import Text

    from harness.report.figures import style

    save, texts = style.save, {}

    def kept(figure, stem):
        path = save(figure, stem)
        texts[path] = [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "save", kept)
        yield texts.__getitem__
