"""Published families against transformers: tiny random models, odd in every size, in fp32 on the CPU.

Environment: STEP, the program reference_step; SNUG, the command. Run by the interpreter of tools/reference_env.sh.
"""
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

import torch
import transformers
from safetensors.torch import load_file, save_file

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
SEQ_LEN, SEQUENCES = 37, 3
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
SIZES = {"vocab_size": 101, "hidden_size": 48, "intermediate_size": 52, "num_hidden_layers": 3, "num_attention_heads": 6,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 3e-5}
GPT2 = {"vocab_size": 103, "n_embd": 40, "n_layer": 3, "n_head": 5, "n_positions": 41, "layer_norm_epsilon": 3e-5}


def random_model(config, seed):
    """Every tensor random, norms and biases too: a tensor that is left out or misplaced must show."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name or "ln_" in name else 0.0, 0.15)
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.15)
    return model.eval()


def write_tokens(path, tokens):
    """llm.c's layout of 16-bit tokens."""
    header = [20240520, 1, len(tokens)] + [0] * 253
    path.write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}H", *tokens))


def old_spelling(path):
    """config.json as transformers 4 wrote it."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config))


class ReferenceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check(self, config, dtype=torch.float32, change=None, **saving):
        """Loss within 1e-5, every gradient within 1e-4, relative."""
        model = random_model(config, seed=7).to(dtype)
        folder = self.folder / "model"
        model.save_pretrained(folder, **saving)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        if change:
            change(folder / "config.json")
        tokens = torch.randint(config.vocab_size, (SEQUENCES * SEQ_LEN + 1,))
        write_tokens(self.folder / "tokens.bin", tokens.tolist())
        rows = [tokens[i * SEQ_LEN:i * SEQ_LEN + SEQ_LEN + 1] for i in range(SEQUENCES)]
        inputs, targets = torch.stack([row[:-1] for row in rows]), torch.stack([row[1:] for row in rows])
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
        loss.backward()

        result = subprocess.run([os.environ["STEP"], folder, self.folder / "tokens.bin", str(SEQ_LEN), self.folder / "out.safetensors"],
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        ours = load_file(self.folder / "out.safetensors")
        self.assertLess(abs(ours.pop("loss").item() / loss.item() - 1), 1e-5)
        self.assertEqual(set(ours), {name for name, _ in model.named_parameters()})
        for name, parameter in model.named_parameters():
            error = (ours[name] - parameter.grad).norm() / parameter.grad.norm()
            self.assertLess(error.item(), 1e-4, name)
        return folder

    def test_gpt2(self):
        self.check(transformers.GPT2Config(**GPT2))

    def test_gpt2_with_a_head_and_an_inner_size_of_its_own(self):
        self.check(transformers.GPT2Config(**GPT2, n_inner=52, tie_word_embeddings=False))

    def test_gpt2_without_the_prefix_and_with_masks_as_first_published(self):
        def strip(path):
            weights = path.parent / "model.safetensors"
            tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(weights).items()}
            tensors["h.0.attn.bias"] = torch.ones(1, 1, 41, 41)
            save_file(tensors, weights)
        self.check(transformers.GPT2Config(**GPT2), change=strip)

    def test_llama(self):
        self.check(transformers.LlamaConfig(**SIZES))

    def test_llama_tied_with_heads_of_another_size(self):
        self.check(transformers.LlamaConfig(**SIZES, head_dim=10, tie_word_embeddings=True))

    def test_llama_in_the_old_spelling(self):
        self.check(transformers.LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 500.0}), change=old_spelling)

    def test_llama_with_linear_positions(self):
        self.check(transformers.LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}))

    def test_llama3_positions(self):
        self.check(transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3))

    def test_llama3_positions_in_the_old_spelling(self):
        self.check(transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3), change=old_spelling)

    def test_weights_of_16_bits(self):
        for dtype in (torch.bfloat16, torch.float16):
            with self.subTest(dtype=dtype):
                self.check(transformers.LlamaConfig(**SIZES), dtype=dtype)

    def test_mistral(self):
        self.check(transformers.MistralConfig(**SIZES, sliding_window=None))

    def test_mistral_with_a_window(self):
        self.check(transformers.MistralConfig(**SIZES, sliding_window=11))

    def test_mistral_with_a_window_that_reaches_back_to_the_first_token(self):
        self.check(transformers.MistralConfig(**SIZES, sliding_window=SEQ_LEN))

    def test_qwen_whose_last_layers_have_a_window(self):
        window = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
        self.check(transformers.Qwen2Config(**SIZES, **window))

    def test_qwen_whose_first_layer_has_a_window(self):
        kinds = ["sliding_attention", "full_attention", "full_attention"]
        self.check(transformers.Qwen3Config(**SIZES, head_dim=12, use_sliding_window=True, sliding_window=36, layer_types=kinds))

    def test_qwen2(self):
        self.check(transformers.Qwen2Config(**SIZES))

    def test_qwen2_tied_and_in_shards(self):
        folder = self.check(transformers.Qwen2Config(**SIZES, tie_word_embeddings=True), max_shard_size="40KB")
        self.assertGreater(len(list(folder.glob("model-*.safetensors"))), 2)

    def test_qwen3(self):
        self.check(transformers.Qwen3Config(**SIZES, head_dim=12))

    def test_qwen3_tied(self):
        self.check(transformers.Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True))


class TrainingTest(unittest.TestCase):
    """snug train from a model that transformers saved, against torch's AdamW, and back into transformers."""
    STEPS, BATCH = 5, 2
    FLAGS = {"lr": 1e-3, "weight_decay": 0.1, "eps": 2e-4}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def snug(self, *arguments):
        result = subprocess.run([os.environ["SNUG"], *map(str, arguments)], capture_output=True, text=True, cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def torch_steps(self, model, tokens):
        optimizer = torch.optim.AdamW(model.parameters(), **self.FLAGS)
        losses = []
        for step in range(self.STEPS):
            first = step * self.BATCH
            rows = torch.stack([tokens[i * SEQ_LEN:i * SEQ_LEN + SEQ_LEN + 1] for i in range(first, first + self.BATCH)])
            loss = torch.nn.functional.cross_entropy(model(rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        return losses

    def check(self, config):
        """Losses and weights within 1e-5, relative; what we save loads in transformers."""
        model = random_model(config, seed=3)
        model.save_pretrained(self.folder / "model")
        tokens = torch.randint(config.vocab_size, (self.STEPS * self.BATCH * SEQ_LEN + 1,))
        write_tokens(self.folder / "tokens.bin", tokens.tolist())
        self.snug("train", "--model", "model", "--data", "tokens.bin", "--device", "cpu", "--steps", self.STEPS, "--batch-size", self.BATCH,
                  "--seq-len", SEQ_LEN, "--lr", self.FLAGS["lr"], "--weight-decay", self.FLAGS["weight_decay"], "--eps", self.FLAGS["eps"],
                  "--out-dir", "run")
        losses = self.torch_steps(model, tokens)
        ours = [json.loads(line)["loss"] for line in (self.folder / "run" / "metrics.jsonl").read_text().splitlines()]
        for mine, theirs in zip(ours, losses, strict=True):
            self.assertLess(abs(mine / theirs - 1), 1e-5)
        saved = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "run" / "state" / f"step-{self.STEPS}", dtype=torch.float32)
        weights = dict(saved.named_parameters())
        for name, parameter in model.named_parameters():
            error = (weights[name] - parameter).norm() / parameter.norm()
            self.assertLess(error.item(), 1e-5, name)

    def test_gpt2(self):
        self.check(transformers.GPT2Config(**GPT2))

    def test_llama_with_scaled_positions(self):
        self.check(transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3))

    def test_mistral(self):
        self.check(transformers.MistralConfig(**SIZES, sliding_window=None))

    def test_qwen2_tied(self):
        self.check(transformers.Qwen2Config(**SIZES, tie_word_embeddings=True))

    def test_qwen3(self):
        self.check(transformers.Qwen3Config(**SIZES, head_dim=12))


if __name__ == "__main__":
    unittest.main()
