-- A small shop, as it is before the pipeline starts. `./dev.sh demo` makes a fresh one.

CREATE TABLE customers (
    id    INTEGER PRIMARY KEY,
    name  TEXT NOT NULL,
    email TEXT
);

CREATE TABLE orders (
    id          INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    item        TEXT NOT NULL,
    total       REAL NOT NULL,
    status      TEXT NOT NULL DEFAULT 'new'
);

INSERT INTO customers (id, name, email) VALUES
    (1, 'Ada', 'ada@example.org'),
    (2, 'Grace', 'grace@example.org');

INSERT INTO orders (id, customer_id, item, total) VALUES
    (1, 1, 'difference engine', 950.00);
