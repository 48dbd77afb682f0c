"""What own.yaml says, for TRL's GRPOTrainer: model, rows, reward, batch, length, learning rate, steps."""

import torch
from datasets import Dataset
from own import rows, share_of_vowels
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32),
    processing_class=AutoTokenizer.from_pretrained("model", padding_side="left"),
    reward_funcs=[share_of_vowels],
    train_dataset=Dataset.from_list(rows()),
    args=GRPOConfig(
        output_dir="runs/trl",
        max_steps=40,
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=16,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        beta=0.0,
        use_cpu=True,
        bf16=False,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
    ),
)
trainer.train()
