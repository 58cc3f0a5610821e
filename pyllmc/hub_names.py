"""The names under which Hugging Face keeps GPT-2 models: from there nothing is fetched here."""

import re

NAMES = re.compile(r"(openai-community/)?gpt2(-medium|-large|-xl)?|(distilbert/)?distilgpt2")


def hint(name):
    """The end of a message that `name` isn't there; "" where it is no such name."""
    if not NAMES.fullmatch(str(name)):
        return ""
    return f": nothing is downloaded, so fetch the folder of {name} from Hugging Face first, and name that"
