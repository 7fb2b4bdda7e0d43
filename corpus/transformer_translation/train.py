"""
Sequence to sequence transformer (4 encoder layers, 4 decoder layers, 8 heads) trained with Adagrad.

The parallel corpus has one text file per sentence and language; it is made up when --data does not have it yet.
"""

import argparse
import math
import os
import re
from typing import List, Tuple

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from toy_languages import STEMS, prepare_corpus

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ['<pad>', '<bos>', '<eos>', '<unk>']


# ------------------------------------------------------------------ data

class Tokenizer:
    """Lower-cases, splits on punctuation and cuts words greedily into the longest known pieces."""

    def __init__(self):
        letters = 'abcdefghijklmnopqrstuvwxyz'
        self.itos = SPECIALS + ['.', ','] + list(letters) + STEMS
        self.stoi = {piece: i for i, piece in enumerate(self.itos)}

    def __len__(self) -> int:
        return len(self.itos)

    def encode(self, text: str) -> List[int]:
        ids = [BOS]
        for word in re.findall(r'\w+|[^\w\s]', text.strip().lower()):
            start = 0
            while start < len(word):
                end = len(word)
                while end > start and word[start:end] not in self.stoi:
                    end -= 1
                ids.append(self.stoi.get(word[start:end], UNK))
                start = max(end, start + 1)
        return ids + [EOS]


class TranslationDataset(Dataset):
    def __init__(self, folder: str, tokenizer: Tokenizer):
        self.folder = folder
        self.tokenizer = tokenizer
        self.files = sorted(os.listdir(os.path.join(folder, 'src')))

    def __len__(self):
        return len(self.files)

    def read(self, lang: str, index: int) -> torch.Tensor:
        with open(os.path.join(self.folder, lang, self.files[index]), encoding='utf-8') as f:
            return torch.tensor(self.tokenizer.encode(f.read()))

    def __getitem__(self, index):
        return self.read('src', index), self.read('tgt', index)


def collate(batch):
    src, tgt = zip(*batch)
    return (pad_sequence(src, batch_first=True, padding_value=PAD),
            pad_sequence(tgt, batch_first=True, padding_value=PAD))


def get_loaders(args, tokenizer: Tokenizer) -> Tuple[DataLoader, DataLoader]:
    train_set = TranslationDataset(prepare_corpus(args.data, 'train', args.train_size, seed=1), tokenizer)
    valid_set = TranslationDataset(prepare_corpus(args.data, 'valid', args.valid_size, seed=2), tokenizer)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, collate_fn=collate)
    valid_loader = DataLoader(valid_set, args.batch_size, shuffle=False, collate_fn=collate)
    return train_loader, valid_loader


# ------------------------------------------------------------------ model

class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, dropout: float, max_len: int = 512):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(1, max_len, d_model)
        pe[0, :, 0::2] = torch.sin(position * div_term)
        pe[0, :, 1::2] = torch.cos(position * div_term)
        self.register_buffer('pe', pe)

    def forward(self, x):
        return self.dropout(x + self.pe[:, :x.size(1)])


class TranslationModel(nn.Module):
    def __init__(self, vocab_size: int, d_model: int, dim_feedforward: int, dropout: float):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
        self.positions = PositionalEncoding(d_model, dropout)
        self.transformer = nn.Transformer(d_model, nhead=8, num_encoder_layers=4, num_decoder_layers=4,
                                          dim_feedforward=dim_feedforward, dropout=dropout, batch_first=True)
        self.generator = nn.Linear(d_model, vocab_size)

    def embed(self, tokens):
        return self.positions(self.embedding(tokens) * math.sqrt(self.d_model))

    def forward(self, src, tgt, tgt_mask):
        src_padding = src == PAD
        out = self.transformer(self.embed(src), self.embed(tgt), tgt_mask=tgt_mask,
                               src_key_padding_mask=src_padding,
                               tgt_key_padding_mask=tgt == PAD,
                               memory_key_padding_mask=src_padding)
        return self.generator(out)


# ------------------------------------------------------------------ training

def compute_loss(model, criterion, src, tgt, use_cuda):
    if use_cuda:
        src = src.cuda()
        tgt = tgt.cuda()
    tgt_in, tgt_out = tgt[:, :-1], tgt[:, 1:]
    # True = may not look there
    mask = torch.triu(torch.ones(tgt_in.size(1), tgt_in.size(1)), diagonal=1).bool()
    if use_cuda:
        mask = mask.cuda()
    logits = model(src, tgt_in, mask)
    return criterion(logits.reshape(-1, logits.size(-1)), tgt_out.reshape(-1))


def train(model, loader, criterion, optimizer, args, use_cuda) -> float:
    model.train()
    total_loss = 0.
    for step, (src, tgt) in enumerate(loader, 1):
        loss = compute_loss(model, criterion, src, tgt, use_cuda)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        total_loss += loss.item()
        if step % args.log_every == 0:
            print(f'| step {step:5d}/{len(loader)} | loss {loss.item():.4f}')
        # ran out of memory on long sentences without this
        torch.cuda.empty_cache()
    return total_loss / len(loader)


def evaluate(model, loader, criterion, use_cuda) -> float:
    model.eval()
    total_loss = 0.
    for src, tgt in loader:
        total_loss += compute_loss(model, criterion, src, tgt, use_cuda).item()
    return total_loss / len(loader)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--data', default='./data', help='folder of the corpus, made if missing')
    parser.add_argument('--train-size', type=int, default=20000)
    parser.add_argument('--valid-size', type=int, default=2000)
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--batch-size', type=int, default=16)
    parser.add_argument('--d-model', type=int, default=512)
    parser.add_argument('--dim-feedforward', type=int, default=2048)
    parser.add_argument('--dropout', type=float, default=0.1)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--clip', type=float, default=1.0, help='gradient norm')
    parser.add_argument('--log-every', type=int, default=50)
    parser.add_argument('--seed', type=int, default=1234)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    use_cuda = torch.cuda.is_available()

    tokenizer = Tokenizer()
    train_loader, valid_loader = get_loaders(args, tokenizer)

    model = TranslationModel(len(tokenizer), args.d_model, args.dim_feedforward, args.dropout)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    if use_cuda:
        model = model.cuda()
        criterion = criterion.cuda()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)

    best = float('inf')
    for epoch in range(1, args.epochs + 1):
        train_loss = train(model, train_loader, criterion, optimizer, args, use_cuda)
        valid_loss = evaluate(model, valid_loader, criterion, use_cuda)
        print(f'epoch {epoch} | train loss {train_loss:.4f} | valid loss {valid_loss:.4f}')
        if valid_loss < best:
            best = valid_loss
            torch.save(model.state_dict(), 'best_model.pt')


if __name__ == '__main__':
    main()
