-- What happens in the shop while the pipeline runs: five transactions, eight changed rows.
-- quickstart.yaml keeps five of them.

-- A new customer and her first order, in one transaction.
BEGIN;
INSERT INTO customers (id, name, email) VALUES (3, 'Żaneta', NULL);
INSERT INTO orders (id, customer_id, item, total) VALUES (2, 3, 'tea, "first flush"', 12.50);
COMMIT;

-- Below 10: filtered out.
BEGIN;
INSERT INTO orders (id, customer_id, item, total) VALUES (3, 2, 'bookmark', 3.00);
COMMIT;

-- One statement, three rows; the bookmark stays behind again.
BEGIN;
UPDATE orders SET status = 'paid';
COMMIT;

BEGIN;
UPDATE customers SET email = 'zaneta@example.org' WHERE id = 3;
COMMIT;

-- Deletes are filtered out too.
BEGIN;
DELETE FROM orders WHERE id = 1;
COMMIT;
