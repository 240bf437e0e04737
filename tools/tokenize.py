#!/usr/bin/env python3
"""Text to a token file that snug reads (llm.c's layouts), with the tokenizer of a Hugging Face model.

  tokenize.py --model Qwen3-0.6B book.txt chat.jsonl --out tokens.bin

A *.jsonl file holds one document per line, under "text" (see --field); any other file is one document. Each document ends with the
model's end-of-text token. Tokens take 16 bits where the vocabulary allows, else 32. Needs `pip install tokenizers` (or transformers,
for a model without tokenizer.json); nothing else in snug needs Python.
"""
import argparse
import array
import json
import os
import pathlib
import struct
import sys

sys.path = [path for path in sys.path if pathlib.Path(path).resolve() != pathlib.Path(__file__).resolve().parent]  # Python has a tokenize of its own

LAYOUTS = {16: (20240520, 1, "H"), 32: (20240801, 7, "I")}  # bits: magic, version, type of a token
MOST_TOKENS = 2**31 - 1  # the header counts with 32 bits


class Problem(Exception):
    """Wrong input: says what was expected and what came."""


def load_tokenizer(folder):
    """(text -> tokens, vocabulary size)"""
    path = folder / "tokenizer.json"
    if path.exists():
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise Problem("the package tokenizers is missing: pip install tokenizers")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises nothing more precise
            raise Problem(f"{path}: {error}")
        tokenizer.no_truncation()  # a tokenizer.json may ask for either
        tokenizer.no_padding()
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.get_vocab_size(with_added_tokens=True)
    if not folder.is_dir():
        raise Problem(f"--model {folder}: expected the folder of a Hugging Face model")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise Problem(f"{folder} has no tokenizer.json: pip install transformers to read what it has")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return lambda text: tokenizer.encode(text, add_special_tokens=False), len(tokenizer)


def end_of_text(folder):
    """As the model's own files say it; None if they do not."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.exists():
            try:
                token = json.loads(path.read_text()).get("eos_token_id")
            except (json.JSONDecodeError, AttributeError) as error:
                raise Problem(f"{path}: not a JSON object: {error}")
            if token is not None:
                first = token[0] if isinstance(token, list) and token else token
                if not isinstance(first, int):
                    raise Problem(f"{path}: eos_token_id must be a number or a list of them, got {json.dumps(token)}")
                return first
    return None


def documents(path, field):
    if path.suffix != ".jsonl":
        yield path.read_text(encoding="utf-8")
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise Problem(f"{path}:{number}: not valid JSON: {error}")
            if not isinstance(record, dict) or not isinstance(record.get(field), str):
                raise Problem(f'{path}:{number}: expected an object with a string under "{field}"')
            yield record[field]


def in_utf8(path, field):
    try:
        yield from documents(path, field)
    except UnicodeDecodeError as error:
        raise Problem(f"{path}: expected text in UTF-8: {error}")


def tokenize(arguments):
    encode, vocabulary = load_tokenizer(arguments.model)
    last = end_of_text(arguments.model) if arguments.eos is None else arguments.eos
    if last is None:
        raise Problem(f"{arguments.model} names no end-of-text token: give --eos, or --eos -1 for none")
    if not -1 <= last < 2**32:
        raise Problem(f"--eos {last}: expected a token, or -1 for none")
    bits = arguments.bits or (16 if max(vocabulary, last + 1) <= 2**16 else 32)
    magic, version, kind = LAYOUTS[bits]
    count = 0
    part = arguments.out.with_name(arguments.out.name + ".part")
    try:
        with part.open("wb") as out:
            out.write(bytes(1024))
            for path in arguments.files:
                for text in in_utf8(path, arguments.field):
                    tokens = encode(text) + ([last] if last >= 0 else [])
                    if tokens and max(tokens) >= 2**bits:
                        raise Problem(f"{path}: token {max(tokens)} does not fit {bits} bits: leave out --bits")
                    count += len(tokens)
                    if count > MOST_TOKENS:
                        raise Problem(f"{path}: more than {MOST_TOKENS} tokens: write several files")
                    out.write(array.array(kind, tokens).tobytes())
                print(f"{path}: {count:,} tokens so far", file=sys.stderr)
            out.seek(0)
            out.write(struct.pack("<256i", magic, version, count, *[0] * 253))
        os.replace(part, arguments.out)
    finally:
        part.unlink(missing_ok=True)
    print(f"{arguments.out}: {count:,} tokens of {bits} bits, vocabulary {vocabulary:,}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--model", required=True, type=pathlib.Path, help="folder with tokenizer.json")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="token file to write")
    parser.add_argument("--field", default="text", help="of the objects in *.jsonl; default text")
    parser.add_argument("--eos", type=int, help="token after each document, -1: none; default: the model's")
    parser.add_argument("--bits", type=int, choices=sorted(LAYOUTS), help="of a token; default: what the vocabulary needs")
    try:
        tokenize(parser.parse_args())
    except (Problem, OSError) as error:
        print(f"tokenize.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
