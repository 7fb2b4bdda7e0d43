"""
Word-level language model: a two-layer LSTM trained with truncated backpropagation through time.

The text is a folder of stories; it is made up when --data does not have it yet.
"""

import argparse
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from word_stories import prepare_stories

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument('--data', default='./data', help='folder of the stories, made if missing')
parser.add_argument('--stories', type=int, default=400)
parser.add_argument('--sentences', type=int, default=400, help='per story')
parser.add_argument('--emsize', type=int, default=650)
parser.add_argument('--nhid', type=int, default=650)
parser.add_argument('--nlayers', type=int, default=2)
parser.add_argument('--dropout', type=float, default=0.2)
parser.add_argument('--lr', type=float, default=1.0)
parser.add_argument('--momentum', type=float, default=0.9)
parser.add_argument('--clip', type=float, default=0.25, help='gradient norm')
parser.add_argument('--epochs', type=int, default=6)
parser.add_argument('--batch-size', type=int, default=20)
parser.add_argument('--bptt', type=int, default=35, help='words per step')
parser.add_argument('--log-interval', type=int, default=200)
parser.add_argument('--seed', type=int, default=1111)
parser.add_argument('--save', default='rnn_lm.pt')
args = parser.parse_args()

torch.manual_seed(args.seed)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

###############################################################################
# Data
###############################################################################


class Corpus(object):
    def __init__(self, folder):
        self.word2idx = {}
        self.idx2word = []
        files = sorted(name for name in os.listdir(folder) if name.endswith('.txt'))
        held_out = max(1, len(files) // 10)
        self.train = self.tokenize(folder, files[2 * held_out:])
        self.valid = self.tokenize(folder, files[:held_out])
        self.test = self.tokenize(folder, files[held_out:2 * held_out])

    def add_word(self, word):
        if word not in self.word2idx:
            self.word2idx[word] = len(self.idx2word)
            self.idx2word.append(word)
        return self.word2idx[word]

    def tokenize(self, folder, files):
        ids = []
        for name in files:
            with open(os.path.join(folder, name), encoding='utf-8') as f:
                for line in f:
                    for word in line.split() + ['<eos>']:
                        ids.append(self.add_word(word))
        return torch.LongTensor(ids)


def batchify(data, bsz):
    # one column per sequence; what does not fit is cut off
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    return data.view(bsz, -1).t().contiguous().to(device)


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i:i + seq_len], source[i + 1:i + 1 + seq_len].reshape(-1)


corpus = Corpus(prepare_stories(args.data, args.stories, args.sentences))
ntokens = len(corpus.idx2word)
eval_batch_size = 10
train_data = batchify(corpus.train, args.batch_size)
val_data = batchify(corpus.valid, eval_batch_size)
test_data = batchify(corpus.test, eval_batch_size)

###############################################################################
# Model
###############################################################################


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout):
        super(RNNModel, self).__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.dropout = dropout
        self.nhid = nhid
        self.nlayers = nlayers
        self.init_weights()

    def init_weights(self):
        initrange = 0.1
        self.encoder.weight.data.uniform_(-initrange, initrange)
        self.decoder.bias.data.zero_()
        self.decoder.weight.data.uniform_(-initrange, initrange)

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(self.nlayers, bsz, self.nhid),
                weight.new_zeros(self.nlayers, bsz, self.nhid))

    def forward(self, input, hidden):
        emb = F.dropout(self.encoder(input), self.dropout)
        output, hidden = self.rnn(emb, hidden)
        output = F.dropout(output, self.dropout)
        decoded = self.decoder(output)
        return decoded.view(-1, decoded.size(-1)), hidden


def repackage_hidden(h):
    """Cuts hidden states off their history."""
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


model = RNNModel(ntokens, args.emsize, args.nhid, args.nlayers, args.dropout).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)

###############################################################################
# Training
###############################################################################


def train(epoch):
    model.train()
    total_loss = 0.
    start_time = time.time()
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt), 1):
        data, targets = get_batch(train_data, i)
        hidden = repackage_hidden(hidden)
        for p in model.parameters():
            if p.grad is not None:
                p.grad.data.zero_()
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        # LSTMs explode now and then
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()

        total_loss += loss.item()
        if batch % args.log_interval == 0:
            cur_loss = total_loss / args.log_interval
            elapsed = time.time() - start_time
            print('| epoch {:3d} | {:5d} batches | {:5.2f} ms/batch | loss {:5.2f} | ppl {:8.2f}'.format(
                epoch, batch, elapsed * 1000 / args.log_interval, cur_loss, math.exp(cur_loss)))
            total_loss = 0.
            start_time = time.time()


def evaluate(source):
    total_loss = 0.
    hidden = model.init_hidden(eval_batch_size)
    for i in range(0, source.size(0) - 1, args.bptt):
        data, targets = get_batch(source, i)
        output, hidden = model(data, hidden)
        total_loss += len(data) * criterion(output, targets).item()
        hidden = repackage_hidden(hidden)
    return total_loss / (len(source) - 1)


best_loss = None
for epoch in range(1, args.epochs + 1):
    train(epoch)
    val_loss = evaluate(val_data)
    print('| end of epoch {:3d} | valid loss {:5.2f} | valid ppl {:8.2f}'.format(
        epoch, val_loss, math.exp(val_loss)))
    if best_loss is None or val_loss < best_loss:
        torch.save(model.state_dict(), args.save)
        best_loss = val_loss

model.load_state_dict(torch.load(args.save))
model.eval()
test_loss = evaluate(test_data)
print('| end of training | test loss {:5.2f} | test ppl {:8.2f}'.format(test_loss, math.exp(test_loss)))
