package org.nd4j.common.primitives;

import java.io.Serializable;

/** The fields and the version that the original's Pair has when it is serialised; nothing else of it matters here. */
public class Pair<K, V> implements Serializable {
    private static final long serialVersionUID = 119L;

    protected K key;
    protected V value;

    public Pair(K key, V value) {
        this.key = key;
        this.value = value;
    }

    public K getFirst() {
        return key;
    }

    public V getSecond() {
        return value;
    }
}
