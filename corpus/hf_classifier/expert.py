"""Sentiment classification with the Hugging Face Trainer: train.py, tuned by hand. What changed, and why:

- Reviews are read and tokenized by worker processes that live on from epoch to epoch; they held up every step.
- bfloat16 on GPUs that compute in it.
- The fused AdamW, which only newer versions of transformers take by themselves.
"""
import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from reviews import Reviews, VOCABULARY, write_split


def compute_metrics(prediction):
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-train", type=int, default=20000)
    parser.add_argument("--num-test", type=int, default=2000)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()

    set_seed(0)
    train_set = Reviews(write_split(args.data, "train", args.num_train, seed=1), args.max_length)
    test_set = Reviews(write_split(args.data, "test", args.num_test, seed=2), args.max_length)

    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=args.hidden_size,
        num_hidden_layers=args.layers,
        num_attention_heads=8,
        intermediate_size=4 * args.hidden_size,
        max_position_embeddings=args.max_length,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)

    training_args = TrainingArguments(
        output_dir="checkpoints",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.batch_size,
        learning_rate=args.lr,
        logging_steps=4,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=2,
        dataloader_persistent_workers=True,
        bf16=torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        optim="adamw_torch_fused",
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_set,
        eval_dataset=test_set,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(f"step {entry['step']}: train loss {entry['loss']:.4f}")
    print(f"test accuracy {trainer.evaluate()['eval_accuracy']:.4f}")
    torch.save(model.state_dict(), "classifier.pt")


if __name__ == "__main__":
    main()
