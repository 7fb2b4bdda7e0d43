#!/usr/bin/python3
# RotatE-style knowledge graph embedding with self-adversarial negative sampling (after the well-known codes/run.py)
import argparse
import json
import logging
import os
import pickle
import random
from collections import defaultdict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def parse_args(args=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("-de", "--double_entity_embedding", action="store_true", default=True)
    parser.add_argument("-n", "--negative_sample_size", default=12, type=int)
    parser.add_argument("-d", "--hidden_dim", default=8, type=int)
    parser.add_argument("-g", "--gamma", default=6.0, type=float)
    parser.add_argument("-a", "--adversarial_temperature", default=0.7, type=float)
    parser.add_argument("-b", "--batch_size", default=24, type=int)
    parser.add_argument("-r", "--regularization", default=1e-4, type=float)
    parser.add_argument("--test_batch_size", default=7, type=int)
    parser.add_argument("--uni_weight", action="store_true")
    parser.add_argument("-lr", "--learning_rate", default=0.1, type=float)
    parser.add_argument("-save", "--save_path", default="models/RotatE", type=str)
    parser.add_argument("--max_steps", default=48, type=int)
    parser.add_argument("--warm_up_steps", default=20, type=int)
    parser.add_argument("--valid_steps", default=16, type=int)
    parser.add_argument("--log_steps", default=6, type=int)
    parser.add_argument("--patience", default=3, type=int)
    return parser.parse_args(args)


class TrainDataset(Dataset):
    def __init__(self, triples, nentity, nrelation, negative_sample_size, mode):
        self.len = len(triples)
        self.triples = triples
        self.nentity = nentity
        self.negative_sample_size = negative_sample_size
        self.mode = mode
        self.count = self.count_frequency(triples)
        self.true_head, self.true_tail = self.get_true_head_and_tail(triples)

    def __len__(self):
        return self.len

    def __getitem__(self, idx):
        head, relation, tail = self.triples[idx]
        weight = self.count[(head, relation)] + self.count[(tail, -relation - 1)]
        weight = torch.sqrt(1 / torch.Tensor([weight]))
        negatives, size = [], 0
        while size < self.negative_sample_size:
            sample = np.random.randint(self.nentity, size=self.negative_sample_size * 2)
            if self.mode == "head-batch":
                mask = np.isin(sample, self.true_head[(relation, tail)], assume_unique=True, invert=True)
            else:
                mask = np.isin(sample, self.true_tail[(head, relation)], assume_unique=True, invert=True)
            sample = sample[mask]
            negatives.append(sample)
            size += sample.size
        negatives = np.concatenate(negatives)[: self.negative_sample_size]
        return torch.LongTensor((head, relation, tail)), torch.LongTensor(negatives), weight, self.mode

    @staticmethod
    def collate_fn(data):
        return (
            torch.stack([_[0] for _ in data], dim=0),
            torch.stack([_[1] for _ in data], dim=0),
            torch.cat([_[2] for _ in data], dim=0),
            data[0][3],
        )

    @staticmethod
    def count_frequency(triples, start=4):
        count = {}
        for head, relation, tail in triples:
            for key in ((head, relation), (tail, -relation - 1)):
                count[key] = count.get(key, start - 1) + 1
        return count

    @staticmethod
    def get_true_head_and_tail(triples):
        heads, tails = defaultdict(set), defaultdict(set)
        for head, relation, tail in triples:
            tails[(head, relation)].add(tail)
            heads[(relation, tail)].add(head)
        return ({k: np.array(list(v)) for k, v in heads.items()}, {k: np.array(list(v)) for k, v in tails.items()})


class TestDataset(Dataset):
    def __init__(self, triples, all_true, nentity, mode):
        self.triples, self.true, self.nentity, self.mode = triples, set(all_true), nentity, mode

    def __len__(self):
        return len(self.triples)

    def __getitem__(self, idx):
        head, relation, tail = self.triples[idx]
        if self.mode == "head-batch":
            tmp = [(0, e) if (e, relation, tail) not in self.true else (-1, head) for e in range(self.nentity)]
            tmp[head] = (0, head)
        else:
            tmp = [(0, e) if (head, relation, e) not in self.true else (-1, tail) for e in range(self.nentity)]
            tmp[tail] = (0, tail)
        tmp = torch.LongTensor(tmp)
        return torch.LongTensor((head, relation, tail)), tmp[:, 1], tmp[:, 0].float(), self.mode

    @staticmethod
    def collate_fn(data):
        return (torch.stack([_[0] for _ in data]), torch.stack([_[1] for _ in data]), torch.stack([_[2] for _ in data]), data[0][3])


class BidirectionalOneShotIterator:
    def __init__(self, dataloader_head, dataloader_tail):
        self.iterator_head = self.one_shot_iterator(dataloader_head)
        self.iterator_tail = self.one_shot_iterator(dataloader_tail)
        self.step = 0

    def __next__(self):
        self.step += 1
        return next(self.iterator_head) if self.step % 2 == 0 else next(self.iterator_tail)

    @staticmethod
    def one_shot_iterator(dataloader):
        while True:
            for data in dataloader:
                yield data


class KGEModel(nn.Module):
    def __init__(self, nentity, nrelation, hidden_dim, gamma):
        super().__init__()
        self.nentity, self.nrelation, self.epsilon = nentity, nrelation, 2.0
        self.gamma = nn.Parameter(torch.Tensor([gamma]), requires_grad=False)
        self.embedding_range = nn.Parameter(torch.Tensor([(self.gamma.item() + self.epsilon) / hidden_dim]), requires_grad=False)
        self.entity_embedding = nn.Parameter(torch.zeros(nentity, hidden_dim * 2))
        nn.init.uniform_(self.entity_embedding, -self.embedding_range.item(), self.embedding_range.item())
        self.relation_embedding = nn.Parameter(torch.zeros(nrelation, hidden_dim))
        nn.init.uniform_(self.relation_embedding, -self.embedding_range.item(), self.embedding_range.item())

    def forward(self, sample, mode="single"):
        if mode == "single":
            head = self.entity_embedding[sample[:, 0]].unsqueeze(1)
            relation = self.relation_embedding[sample[:, 1]].unsqueeze(1)
            tail = self.entity_embedding[sample[:, 2]].unsqueeze(1)
        else:
            positive, others = sample
            n, k = others.size(0), others.size(1)
            picked = torch.index_select(self.entity_embedding, 0, others.reshape(-1)).view(n, k, -1)
            relation = torch.index_select(self.relation_embedding, 0, positive[:, 1]).unsqueeze(1)
            if mode == "head-batch":
                head, tail = picked, self.entity_embedding[positive[:, 2]].unsqueeze(1)
            else:
                head, tail = self.entity_embedding[positive[:, 0]].unsqueeze(1), picked
        return self.rotate(head, relation, tail, mode)

    def rotate(self, head, relation, tail, mode):
        pi = 3.14159265358979323846
        head = torch.view_as_complex(torch.stack(head.chunk(2, dim=2), dim=-1))
        tail = torch.view_as_complex(torch.stack(tail.chunk(2, dim=2), dim=-1))
        phase = relation / (self.embedding_range.item() / pi)
        rotation = torch.polar(torch.ones_like(phase), phase)
        if mode == "head-batch":
            diff = torch.conj(rotation) * tail - head
        else:
            diff = head * rotation - tail
        score = torch.sqrt(diff.real ** 2 + diff.imag ** 2 + 1e-9)
        return self.gamma.item() - score.sum(dim=2)

    @staticmethod
    def train_step(model, optimizer, train_iterator, args):
        model.train()
        optimizer.zero_grad()
        positive, negative, weight, mode = next(train_iterator)
        if args.cuda:
            positive, negative, weight = positive.cuda(), negative.cuda(), weight.cuda()
        negative_score = model((positive, negative), mode=mode)
        # self-adversarial: no gradient through the sampling weight
        negative_score = (
            F.softmax(negative_score * args.adversarial_temperature, dim=1).detach() * F.logsigmoid(-negative_score)
        ).sum(dim=1)
        positive_score = F.logsigmoid(model(positive)).squeeze(dim=1)
        if args.uni_weight:
            positive_loss, negative_loss = -positive_score.mean(), -negative_score.mean()
        else:
            positive_loss = -(weight * positive_score).sum() / weight.sum()
            negative_loss = -(weight * negative_score).sum() / weight.sum()
        loss = (positive_loss + negative_loss) / 2
        log = {}
        if args.regularization != 0.0:
            regularization = args.regularization * (
                model.entity_embedding.norm(p=3) ** 3 + model.relation_embedding.norm(p=3).norm(p=3) ** 3
            )
            loss = loss + regularization
            log["regularization"] = regularization.item()
        loss.backward()
        optimizer.step()
        return {**log, "positive_sample_loss": positive_loss.item(), "negative_sample_loss": negative_loss.item(), "loss": loss.item()}

    @staticmethod
    def test_step(model, triples, all_true, args):
        model.eval()
        logs, step = [], 0
        loaders = [
            DataLoader(TestDataset(triples, all_true, model.nentity, mode), batch_size=args.test_batch_size, collate_fn=TestDataset.collate_fn)
            for mode in ("head-batch", "tail-batch")
        ]
        with torch.no_grad():
            for loader in loaders:
                for positive, candidates, bias, mode in loader:
                    if args.cuda:
                        positive, candidates, bias = positive.cuda(), candidates.cuda(), bias.cuda()
                    score = model((positive, candidates), mode)
                    score += bias * 1000.0
                    argsort = torch.argsort(score, dim=1, descending=True)
                    answer = positive[:, 0] if mode == "head-batch" else positive[:, 2]
                    for i in range(positive.size(0)):
                        ranking = (argsort[i, :] == answer[i]).nonzero()
                        assert ranking.size(0) == 1
                        ranking = 1 + ranking.item()
                        logs.append({"MRR": 1.0 / ranking, "MR": float(ranking), "HITS@1": 1.0 if ranking <= 1 else 0.0,
                                     "HITS@3": 1.0 if ranking <= 3 else 0.0, "HITS@10": 1.0 if ranking <= 10 else 0.0})
                    step += 1
        return {metric: sum(log[metric] for log in logs) / len(logs) for metric in logs[0]}


def save_model(model, optimizer, variables, args):
    os.makedirs(args.save_path, exist_ok=True)
    with open(os.path.join(args.save_path, "config.json"), "w") as f:
        json.dump(vars(args), f)
    torch.save({**variables, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()},
               os.path.join(args.save_path, "checkpoint"))
    np.save(os.path.join(args.save_path, "entity_embedding"), model.entity_embedding.detach().cpu().numpy())
    np.save(os.path.join(args.save_path, "relation_embedding"), model.relation_embedding.detach().cpu().numpy())


def log_metrics(mode, step, metrics):
    for metric in metrics:
        logging.info("%s %s at step %d: %f" % (mode, metric, step, metrics[metric]))


def make_graph(nentity=40, nrelation=4, n=260):
    rng = random.Random(5)
    angle = [rng.random() for _ in range(nentity)]
    shift = [0.1, 0.25, 0.4, 0.7]
    triples = set()
    while len(triples) < n:
        h, r = rng.randrange(nentity), rng.randrange(nrelation)
        want = (angle[h] + shift[r]) % 1
        order = sorted(range(nentity), key=lambda e: abs(angle[e] - want))
        triples.add((h, r, order[min(int(rng.expovariate(0.9)), 6)]))
    triples = sorted(triples)
    rng.shuffle(triples)
    return triples[:210], triples[210:230], triples[230:]


def main(args):
    if args.cuda and not torch.cuda.is_available():
        args.cuda = False
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    os.makedirs(args.save_path, exist_ok=True)
    logging.basicConfig(format="%(asctime)s %(levelname)-8s %(message)s", level=logging.INFO,
                        handlers=[logging.FileHandler(os.path.join(args.save_path, "train.log"), mode="w"), logging.StreamHandler()])
    train_triples, valid_triples, test_triples = make_graph()
    nentity, nrelation = 40, 4
    all_true = train_triples + valid_triples + test_triples
    model = KGEModel(nentity, nrelation, args.hidden_dim, args.gamma)
    for name, param in model.named_parameters():
        logging.info("Parameter %s: %s, require_grad = %s" % (name, str(param.size()), str(param.requires_grad)))
    if args.cuda:
        model = model.cuda()
    loaders = [
        DataLoader(TrainDataset(train_triples, nentity, nrelation, args.negative_sample_size, mode),
                   batch_size=args.batch_size, shuffle=True, collate_fn=TrainDataset.collate_fn)
        for mode in ("head-batch", "tail-batch")
    ]
    train_iterator = BidirectionalOneShotIterator(*loaders)
    current_lr, warm_up_steps = args.learning_rate, args.warm_up_steps
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=current_lr)
    training_logs, best_mrr, bad = [], 0.0, 0
    for step in range(args.max_steps):
        training_logs.append(model.train_step(model, optimizer, train_iterator, args))
        if step >= warm_up_steps:
            current_lr = current_lr / 10
            logging.info("Change learning_rate to %f at step %d" % (current_lr, step))
            optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=current_lr)
            warm_up_steps = warm_up_steps * 3
        if step % args.log_steps == 0:
            log_metrics("Training average", step, {m: sum(l[m] for l in training_logs) / len(training_logs) for m in training_logs[0]})
            training_logs = []
        if (step + 1) % args.valid_steps == 0:
            metrics = model.test_step(model, valid_triples, all_true, args)
            log_metrics("Valid", step, metrics)
            if metrics["MRR"] > best_mrr:
                best_mrr, bad = metrics["MRR"], 0
                save_model(model, optimizer, {"step": step, "current_lr": current_lr, "warm_up_steps": warm_up_steps}, args)
            else:
                bad += 1
                if bad >= args.patience:
                    break
    checkpoint = torch.load(os.path.join(args.save_path, "checkpoint"))
    model.load_state_dict(checkpoint["model_state_dict"])
    metrics = model.test_step(model, test_triples, all_true, args)
    log_metrics("Test", checkpoint["step"], metrics)
    # fastText-like dump of the entities
    with open("entities.vec", "w") as f:
        f.write("%d %d\n" % tuple(model.entity_embedding.shape))
        for i, row in enumerate(model.entity_embedding.detach().cpu().tolist()):
            f.write("e%d %s\n" % (i, " ".join("%.4f" % v for v in row)))
    with open("entities.bin", "wb") as f:
        model.entity_embedding.detach().cpu().numpy().tofile(f)
    with open("metrics.pkl", "wb") as f:
        pickle.dump({"best": best_mrr, "test": metrics}, f)


if __name__ == "__main__":
    main(parse_args())
