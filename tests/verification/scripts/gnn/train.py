"""A graph network without a library: full-batch training with masks, dropout on edges, early stopping on validation."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


def normalize(edges, n):
    loops = torch.arange(n).repeat(2, 1)
    edges = torch.cat([edges, loops], dim=1)
    row, col = edges
    degree = torch.zeros(n).scatter_add_(0, row, torch.ones(row.size(0)))
    inverse = degree.pow(-0.5)
    inverse[inverse == float("inf")] = 0
    return edges, inverse[row] * inverse[col]


def drop_edges(edges, p, training):
    if not training:
        return edges
    return edges[:, torch.rand(edges.size(1)) >= p]


class GraphConv(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, m))
        self.bias = nn.Parameter(torch.zeros(m))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, edges, weights):
        x = x @ self.weight
        out = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]] * weights.unsqueeze(1))
        return out + self.bias


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = GraphConv(8, 16), GraphConv(16, 3)

    def forward(self, x, edges):
        edges, weights = normalize(drop_edges(edges, 0.2, self.training), x.size(0))
        x = F.dropout(x, 0.5, training=self.training)
        x = F.relu(self.one(x, edges, weights))
        x = F.dropout(x, 0.5, training=self.training)
        return F.log_softmax(self.two(x, edges, weights), dim=1)


def make_graph(n=60):
    labels = torch.randint(0, 3, (n,))
    x = torch.randn(n, 8) + 1.5 * torch.eye(8)[labels]
    same = labels[:, None] == labels[None, :]
    linked = torch.rand(n, n) < torch.where(same, 0.12, 0.02)
    linked = (linked | linked.T).fill_diagonal_(False)
    x = x / x.abs().sum(1, keepdim=True)
    masks = torch.zeros(3, n, dtype=torch.bool)
    masks[torch.randint(0, 3, (n,)), torch.arange(n)] = True
    return x, linked.nonzero().T, labels, masks


def main():
    torch.manual_seed(11)
    x, edges, labels, (train, valid, test) = make_graph()
    model = GCN()
    optimizer = torch.optim.Adam(
        [
            {"params": model.one.parameters(), "weight_decay": 5e-4},
            {"params": model.two.parameters(), "weight_decay": 0},
        ],
        lr=0.05,
    )
    best_acc, best, patience = 0.0, None, 0
    for epoch in range(16):
        model.train()
        optimizer.zero_grad()
        loss = F.nll_loss(model(x, edges)[train], labels[train])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            predicted = model(x, edges).argmax(1)
        acc = (predicted[valid] == labels[valid]).float().mean().item()
        if acc > best_acc:
            best_acc, best, patience = acc, copy.deepcopy(model.state_dict()), 0
        else:
            patience += 1
            if patience == 12:
                break
        if epoch % 5 == 0:
            print(f"{epoch:03d} loss {loss:.4f} valid {acc:.4f}")
    model.load_state_dict(best)
    model.eval()
    with torch.no_grad():
        predicted = model(x, edges).argmax(1)
    print("test", (predicted[test] == labels[test]).float().mean().item())


if __name__ == "__main__":
    main()
